"""Sessions on the CUDA provider, as far as they can be tried without a GPU: what is registered, refused and said.

onnxruntime's CPU build stands in: it is asked for the CPU provider where the call names CUDA's, and says afterwards
what the test wants it to say. Which provider got which node is its own answer.
"""

import warnings
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import rmsnorm_deploy
from rmsnorm_deploy.check import doctor
from rmsnorm_deploy.errors import MissingEnvironment, UsageError
from rmsnorm_deploy.op import Op, function_body
from rmsnorm_deploy.op.reference import rms_norm
from rmsnorm_deploy.run import library, nvidia, providers, session

CUDA, PLUGIN = (p.name for p in providers.GPU)
CPU = providers.CPU.name
SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "models" / "llama_float16.onnx"
X = np.array([[3.0, 4.0], [0.0, 2.0]], np.float32)
WANTED, _ = rms_norm(X, np.ones(2), exact=True)


@pytest.fixture
def proto():
    """Two fused norms with their function bodies."""
    attributes = {"axes": [-1], "epsilon": 0.0, "stash_type": 1, "scale_type": 1, "output_type": 1}
    nodes = [
        helper.make_node("RMSNorm", ["X", "scale"], ["a"], domain="rmsnorm_deploy", name="first", **attributes),
        helper.make_node("RMSNorm", ["a", "scale"], ["Y"], domain="rmsnorm_deploy", name="second", **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor("scale", TensorProto.FLOAT, [2], [1.0, 1.0])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("rmsnorm_deploy", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[function_body(Op.RMS_NORM, 18)])


class Machine:
    """What the stand-in for onnxruntime's CUDA build is asked for, and what it answers."""

    def __init__(self):
        self.running = [CUDA, CPU]
        self.placed = CUDA  # where the nodes are said to be; None: as onnxruntime says
        self.can_say = True
        self.options = None

    def open(self, model, sess_options, providers, **kwargs):
        self.options = sess_options
        opened = self.real(model, sess_options, providers=[CPU] if providers else None, **kwargs)
        opened.get_providers = lambda: self.running
        if not self.can_say:
            opened.get_provider_graph_assignment_info = None  # as if it were older than 1.24
        elif self.placed and hasattr(opened, "get_provider_graph_assignment_info"):
            parts = opened.get_provider_graph_assignment_info
            placed = self.placed
            opened.get_provider_graph_assignment_info = lambda: [Part(placed, p.get_nodes()) for p in parts()]
        return opened


class Part:
    def __init__(self, ep_name, nodes):
        self.ep_name, self.nodes = ep_name, nodes

    def get_nodes(self):
        return self.nodes


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    made.real = ort.InferenceSession
    monkeypatch.setattr(ort, "InferenceSession", made.open)
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, PLUGIN, CPU])
    return made


@pytest.fixture
def with_cuda(monkeypatch):
    monkeypatch.setattr(library, "cuda_architectures", lambda path: ("75-real", "80-real", "100"))


@pytest.fixture
def without_cuda(monkeypatch):
    monkeypatch.setattr(library, "cuda_architectures", lambda path: ())


@pytest.mark.parametrize("providers", [CUDA, PLUGIN, [CUDA], [(CUDA, {"device_id": 0}), CPU], (PLUGIN, CPU)])
def test_a_library_with_cuda_is_registered(machine, with_cuda, proto, providers):
    opened = session.session(proto, providers=providers)
    assert session.is_registered(machine.options)
    np.testing.assert_allclose(opened.run(None, {"X": X})[0], WANTED, rtol=1e-6)


def test_norms_that_onnxruntime_puts_on_the_cpu_are_refused_by_name(machine, with_cuda, proto):
    machine.placed = None
    with pytest.raises(MissingEnvironment, match=r"gave 2 fused norms to the CPU.*first, second") as caught:
        session.session(proto, providers=[CUDA, CPU])
    assert "function bodies" in caught.value.hint


def test_an_onnxruntime_that_cannot_say_where_nodes_are_is_believed(machine, with_cuda, proto):
    machine.placed, machine.can_say = None, False
    session.session(proto, providers=[CUDA, CPU])


def test_a_provider_that_does_not_start_is_said(machine, with_cuda, proto):
    machine.running = [CPU]
    with pytest.warns(UserWarning, match=f"did not start {CUDA}; the whole model runs on the CPU"):
        opened = session.session(proto, providers=[CUDA, CPU])
    np.testing.assert_allclose(opened.run(None, {"X": X})[0], WANTED, rtol=1e-6)


TENSORRT = "TensorrtExecutionProvider"


def asked_for(machine, monkeypatch):
    """The stand-in knows TensorRT as well; returns what it is asked for, session by session."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
    asked = []
    real = machine.open

    def opens(model, sess_options, providers, **kwargs):
        asked.append((providers, session.is_registered(sess_options), kwargs.get("provider_options")))
        return real(model, sess_options, providers, **({} if providers else kwargs))

    monkeypatch.setattr(ort, "InferenceSession", opens)
    return asked


def test_providers_that_do_not_start_do_not_keep_the_library_out(machine, with_cuda, proto, monkeypatch):
    asked = asked_for(machine, monkeypatch)
    machine.running = [CPU]
    given = [{"a": "b"}, {}, {"c": "d"}]
    with pytest.warns(UserWarning, match=f"not start {TENSORRT}, {CUDA}; the whole model runs on the CPU") as said:
        opened = session.session(proto, providers=[TENSORRT, CUDA, CPU], provider_options=given)
    assert len(said) == 1
    assert asked == [([TENSORRT, CUDA, CPU], False, given), ([CPU], True, [{"c": "d"}])]
    np.testing.assert_allclose(opened.run(None, {"X": X})[0], WANTED, rtol=1e-6)


def test_where_only_the_other_provider_does_not_start_the_norms_run_on_the_gpu(machine, with_cuda, proto, monkeypatch):
    asked = asked_for(machine, monkeypatch)
    with pytest.warns(UserWarning, match=f"did not start {TENSORRT}; the model runs on {CUDA} and {CPU}, the fused"):
        session.session(proto, providers=[(TENSORRT, {"a": "b"}), (CUDA, {"device_id": 0}), CPU])
    assert [(p, r) for p, r, _ in asked[1:]] == [([(CUDA, {"device_id": 0}), CPU], True)]


def test_an_other_provider_that_starts_keeps_the_library_out(machine, with_cuda, proto, monkeypatch):
    asked = asked_for(machine, monkeypatch)
    machine.running = [TENSORRT, CUDA, CPU]
    with pytest.warns(UserWarning, match=f"no kernels for {TENSORRT} and is not registered"):
        session.session(proto, providers=[TENSORRT, CUDA, CPU])
    assert [registered for _, registered, _ in asked] == [False]


def test_a_library_without_cuda_runs_the_norms_where_the_gpu_does_not_start(machine, without_cuda, proto):
    machine.running = [CPU]
    with pytest.warns(UserWarning, match=f"not start {CUDA}; the whole model runs on the CPU, the fused norms too"):
        session.session(proto, providers=[CUDA, CPU])
    assert session.is_registered(machine.options)


def test_what_does_not_start_keeps_no_norm_of_onnxruntimes_from_being_replaced(machine, with_cuda, proto):
    machine.running = [CPU]
    with pytest.warns(UserWarning, match=f"did not start {CUDA}"):
        session.session(proto, providers=[CUDA, CPU], override_builtin=True)
    assert session.is_registered(machine.options, override_builtin=True)


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_this_onnxruntime_lacks_does_not_count(proto):
    options = ort.SessionOptions()
    session.session(proto, providers=["DmlExecutionProvider", CPU], sess_options=options)
    assert session.is_registered(options)


def test_a_provider_that_runs_no_operators_does_not_count(machine, proto, monkeypatch):
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["AzureExecutionProvider", CPU])
    machine.running = ["AzureExecutionProvider", CPU]
    session.session(proto, providers=ort.get_available_providers())
    assert session.is_registered(machine.options)


def test_a_library_without_cuda_is_left_out_and_that_is_said(machine, without_cuda, proto):
    with pytest.warns(UserWarning, match=f"built without CUDA; on {CUDA} fused norms run by their function bodies"):
        opened = session.session(proto, providers=[CUDA, CPU])
    assert not session.is_registered(machine.options)
    np.testing.assert_allclose(opened.run(None, {"X": X})[0], WANTED, rtol=1e-6)  # the bodies


def test_a_library_without_cuda_that_is_registered_is_refused(machine, without_cuda, proto):
    options = ort.SessionOptions()
    session.register(options)
    with pytest.raises(UsageError, match=f"copied from {CUDA} to the host") as caught:
        session.session(proto, providers=[CUDA, CPU], session_options=options)
    assert "nvcc" in caught.value.hint
    assert machine.options is None


@pytest.mark.parametrize("running", [[CUDA, CPU], [CPU]])
def test_no_library_at_all_is_said(machine, proto, monkeypatch, tmp_path, running):
    machine.running = running
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(tmp_path / "no.so"))
    with pytest.warns(UserWarning, match=r"no\.so.*function bodies"):
        opened = session.session(proto, providers=[CUDA, CPU])
    np.testing.assert_allclose(opened.run(None, {"X": X})[0], WANTED, rtol=1e-6)


def test_onnxruntimes_own_norms_keep_their_kernels_on_the_gpu(machine, with_cuda, proto):
    with pytest.warns(UserWarning, match="keep onnxruntime's kernels"):
        session.session(proto, providers=[CUDA, CPU], override_builtin=True)
    assert not session.is_registered(machine.options, override_builtin=True)


@pytest.mark.parametrize("able", [False, True])
def test_devices_in_the_session_options_are_treated_as_a_gpu(machine, monkeypatch, proto, able):
    monkeypatch.setattr(library, "cuda_architectures", lambda path: ("100",) if able else ())
    monkeypatch.setattr(ort.SessionOptions, "has_providers", lambda self: True, raising=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        session.session(proto)
    assert session.is_registered(machine.options) == able
    assert len(said) == (not able)


V100, T4, H100, B200 = (7, 0), (7, 5), (9, 0), (10, 0)


@pytest.fixture
def gpus(monkeypatch):
    """A driver that sees these GPUs, and a library built with CUDA 13.0."""

    def set_to(*capabilities, cuda="13.0"):
        names = tuple(f"GPU of {major}.{minor}" for major, minor in capabilities)
        monkeypatch.setattr(nvidia, "driver", lambda: nvidia.Driver(cuda, names, "", capabilities))

    monkeypatch.setattr(library, "cuda_version", lambda path: (13, 0))
    return set_to


@pytest.mark.parametrize(
    ("architecture", "capability", "runs"),
    [
        ("75-real", T4, True),
        ("75-real", V100, False),  # the same family, earlier
        ("75-real", (8, 0), False),
        ("80-real", (8, 0), True),
        ("80-real", (8, 9), True),  # the same family, later
        ("86-real", (8, 0), False),
        ("80-real", H100, False),  # machine code of another family
        ("90-real", H100, True),
        ("90a-real", H100, True),
        ("90a", B200, False),  # for that very one
        ("100", B200, True),
        ("100", (12, 0), True),  # by its PTX
        ("100f", (12, 0), False),
        ("100f", (10, 3), True),
        ("100-virtual", (12, 0), True),
        ("100", H100, False),
        ("native", H100, False),
    ],
)
def test_which_gpus_run_an_architecture(architecture, capability, runs):
    found = nvidia.cannot_run([architecture], (13, 0), nvidia.Driver("13.0", ("A GPU",), "", (capability,)), 0)
    assert (found == "") == runs


@pytest.mark.parametrize(
    ("capability", "cuda", "says"),
    [
        (V100, "13.0", "has kernels for 75-real, 80-real, 100, and GPU 0, GPU of 7.0, has compute capability 7.0"),
        (B200, "12.9", r"was built with CUDA 13\.0, and this machine's NVIDIA driver runs CUDA 12\.9 at most"),
    ],
)
def test_a_gpu_that_cannot_run_the_kernels_runs_the_bodies(machine, with_cuda, gpus, proto, capability, cuda, says):
    gpus(capability, cuda=cuda)
    with pytest.warns(UserWarning, match=f"{says}; on {CUDA} fused norms run by their function bodies") as said:
        opened = session.session(proto, providers=[CUDA, CPU])
    assert len(said) == 1
    assert not session.is_registered(machine.options)
    np.testing.assert_allclose(opened.run(None, {"X": X})[0], WANTED, rtol=1e-6)
    runs = doctor.examine()["runs"][f"fused models on {CUDA}"]
    assert runs.startswith("function bodies: the library ")


@pytest.mark.parametrize("capability", [T4, B200])
def test_a_gpu_that_has_machine_code_runs_it(machine, with_cuda, gpus, proto, capability):
    gpus(capability)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.session(proto, providers=[CUDA, CPU])
    assert session.is_registered(machine.options)
    assert doctor.examine()["runs"][f"fused models on {CUDA}"] == "library's kernels"


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("kind", [int, str])
@pytest.mark.parametrize("apart", [False, True])
def test_the_gpu_that_counts_is_the_one_that_is_asked_for(machine, with_cuda, gpus, proto, device, kind, apart):
    gpus(B200, V100)
    options = {"device_id": kind(device)}
    given = {"providers": [CUDA], "provider_options": [options]} if apart else {"providers": [(CUDA, options)]}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        session.session(proto, **given)
    assert session.is_registered(machine.options) == (device == 0)
    assert len(said) == device


def test_a_driver_that_says_less_is_believed(machine, with_cuda, monkeypatch, proto):
    monkeypatch.setattr(nvidia, "driver", lambda: nvidia.Driver("13.0", ("A GPU",), "", ((0, 0),)))
    session.session(proto, providers=[CUDA, CPU])
    assert session.is_registered(machine.options)


@pytest.mark.parametrize(("running", "able"), [(["SomePluginExecutionProvider", CPU], False), ([CPU], True)])
def test_devices_that_are_no_gpu_of_ours_get_the_bodies(
    machine, with_cuda, monkeypatch, proto, running, able, tmp_path
):
    """The kernels would draw the norms to the host; the CPU as a device is the CPU."""
    machine.running, machine.placed = running, None
    monkeypatch.setattr(ort.SessionOptions, "has_providers", lambda self: True, raising=False)
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        opened = session.session(proto, options)
    opened.end_profiling()
    assert session.is_registered(options) == able
    assert len(said) == (not able)
    assert options.enable_profiling
    assert len(list(tmp_path.iterdir())) == 1  # of the session alone
    np.testing.assert_allclose(opened.run(None, {"X": X})[0], WANTED, rtol=1e-6)


def test_without_a_cuda_provider_in_onnxruntime_the_norms_run_on_the_cpu(proto):
    options = ort.SessionOptions()
    with pytest.warns(UserWarning, match=f"Specified provider '{CUDA}' is not in available"):
        opened = session.session(proto, providers=[CUDA, CPU], session_options=options)
    assert session.is_registered(options)
    assert opened.get_providers() == [CPU]
    np.testing.assert_allclose(opened.run(None, {"X": X})[0], WANTED, rtol=1e-6)


def test_onnxruntime_gives_every_fused_norm_to_the_provider_that_has_its_kernel():
    """Nodes of all operators and types, with bodies: none is replaced by its body, none is anywhere else."""
    options = ort.SessionOptions()
    session.register(options)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    fused, _ = rmsnorm_deploy.fuse(SAMPLE)
    opened = ort.InferenceSession(fused.SerializeToString(), options, providers=[CPU])
    if not hasattr(opened, "get_provider_graph_assignment_info"):
        pytest.skip("needs onnxruntime 1.24 or newer, which can say where nodes are")
    ours = [
        (part.ep_name, node.op_type)
        for part in opened.get_provider_graph_assignment_info()
        for node in part.get_nodes()
        if node.domain == "rmsnorm_deploy"
    ]
    wanted = [n.op_type for n in fused.graph.node if n.domain == "rmsnorm_deploy"]
    assert len(wanted) == 5
    assert sorted(ours) == sorted((CPU, op) for op in wanted)


def test_architectures_of_what_is_no_library(tmp_path):
    assert library.cuda_architectures(tmp_path / "no.so") == ()
    text = tmp_path / "text.so"
    text.write_text("no library")
    assert library.cuda_architectures(text) == ()
    assert library.cuda_version(text) is None


def test_the_driver_is_asked(monkeypatch, tmp_path):
    monkeypatch.setenv(nvidia.DRIVER_VARIABLE, str(tmp_path / "no.so"))
    assert nvidia.driver() == nvidia.Driver(None, (), "no NVIDIA driver is installed")


@pytest.mark.parametrize(
    ("architectures", "problem", "says"),
    [
        (("100",), "", "library's kernels"),
        ((), "", "function bodies: the library was built without CUDA"),
        (("100",), "no NVIDIA driver is installed", "not here: no NVIDIA driver is installed"),
    ],
)
def test_doctor_says_what_runs_on_the_gpu(machine, monkeypatch, architectures, problem, says):
    monkeypatch.setattr(library, "cuda_architectures", lambda path: architectures)
    monkeypatch.setattr(nvidia, "driver", lambda: nvidia.Driver("13.0", () if problem else ("A GPU",), problem))
    found = doctor.examine()
    assert found["runs"][f"fused models on {CUDA}"] == says
    assert found["library"]["cuda_architectures"] == list(architectures)
    assert any("nvcc" in advice for advice in found["advice"]) == (not architectures)


def test_doctor_says_that_onnxruntime_has_no_cuda_provider():
    if CUDA in ort.get_available_providers():
        pytest.skip("this onnxruntime has one")
    runs = doctor.examine()["runs"]
    assert runs[f"fused models on {CUDA}"] == "not here: this onnxruntime is built without it"
