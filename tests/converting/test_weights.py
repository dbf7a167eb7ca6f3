"""Weights: where they lie before and after, and that they are never all in memory."""

import tracemalloc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

import rmsnorm_deploy
from rmsnorm_deploy.converting.centring import centred
from rmsnorm_deploy.errors import ModelError
from tests.support.spellings.graph import I64, F, Graph, V
from tests.support.streams import Streams, feeds, layer_norms


@pytest.fixture
def external(tmp_path):
    g = Streams()
    model = g.finish(g.layers(g.embedded()))
    inside = onnx.ModelProto()
    inside.CopyFrom(model)
    (tmp_path / "a").mkdir()
    options = {"location": "w.bin", "size_threshold": 100, "save_as_external_data": True}
    onnx.save_model(model, tmp_path / "a" / "m.onnx", **options)
    return tmp_path / "a" / "m.onnx", inside


@pytest.mark.parametrize("same_folder", [True, False])
@pytest.mark.parametrize("fuse", [True, False])
def test_external_weights_stay_external_and_the_original_stays(external, tmp_path, same_folder, fuse):
    path, inside = external
    before = (path.parent / "w.bin").read_bytes(), path.read_bytes()
    result, report = rmsnorm_deploy.convert(path, fuse=fuse)
    target = (path.parent if same_folder else tmp_path) / "out.onnx"
    saved = rmsnorm_deploy.save(result, target, source=path)
    assert report.converted == 3
    assert saved.weight_files == ("out.onnx.data",)
    assert ((path.parent / "w.bin").read_bytes(), path.read_bytes()) == before
    written = onnx.load(target, load_external_data=False)
    assert any(t.data_location == TensorProto.EXTERNAL and t.name == "table" for t in written.graph.initializer)
    assert layer_norms(written) == 0
    rmsnorm_deploy.verify(path, target).require()
    wanted = {t.name: onnx.numpy_helper.to_array(t) for t in inside.graph.initializer}["table"]
    got = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(target).graph.initializer}["table"]
    np.testing.assert_array_equal(got, centred(wanted, -1))


def test_an_external_weight_in_16_bits_is_written_in_32(tmp_path):
    g = Streams()
    x = g.embedded()
    w = g.weight(g.rng.standard_normal((16, 16)) + 0.5, TensorProto.FLOAT16, "half")
    x = x + g.op("MatMul", g.op("Tanh", g.layer_norm(x)), g.cast(w, F))
    options = {"location": "w.bin", "size_threshold": 100, "save_as_external_data": True}
    onnx.save_model(g.finish(x), tmp_path / "m.onnx", **options)
    result, report = rmsnorm_deploy.convert(tmp_path / "m.onnx")
    assert report.converted == 2
    rmsnorm_deploy.save(result, tmp_path / "out.onnx", source=tmp_path / "m.onnx")
    written = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    edited = [t for t in written.graph.initializer if list(t.dims) == [16, 16]]
    assert [t.data_type for t in edited if t.data_location == TensorProto.EXTERNAL and t.name != "half"] == [F]
    rmsnorm_deploy.verify(tmp_path / "m.onnx", tmp_path / "out.onnx").require()


def test_a_weight_that_is_too_large_without_its_mean():
    g = Streams()
    table = g.weight(np.where(np.arange(16) == 0, 3e38, -3e38) * np.ones((11, 1)), F, "table")
    model = g.finish(g.layers(g.embedded(table)))
    with pytest.raises(ModelError, match="'table' without its mean does not fit into its type, FLOAT"):
        rmsnorm_deploy.convert(model)


def test_a_model_in_memory_keeps_its_weights_inside(tmp_path):
    g = Streams()
    model = g.finish(g.layers(g.embedded()))
    for given in (model, ir.from_proto(model)):
        result, _ = rmsnorm_deploy.convert(given)
        saved = rmsnorm_deploy.save(result, tmp_path / "out.onnx", overwrite=True)
        assert not saved.weight_files
        loaded = onnx.load(tmp_path / "out.onnx")
        assert not any(t.external_data for t in loaded.graph.initializer)
        rmsnorm_deploy.session(tmp_path / "out.onnx").run(None, feeds(model))


def test_weights_in_a_folder_that_nobody_knows(external):
    path, _ = external
    proto = onnx.load(path, load_external_data=False)
    with pytest.raises(ModelError, match="it is not known in which folder"):
        rmsnorm_deploy.convert(proto)


def test_the_arithmetic_in_blocks_is_that_of_the_whole(monkeypatch):
    import rmsnorm_deploy.converting.centring as module

    array = (np.random.default_rng(0).standard_normal((7, 5, 6)) + 9).astype(np.float32)
    scale = np.linspace(-1, 3, 5).astype(np.float32)
    for axis, scales in ((-1, []), (-2, [scale]), (-3, [])):
        whole = array.astype(np.float64) * (scale[:, None].astype(np.float64) if scales else 1)
        wanted = (whole - whole.mean(axis=axis, keepdims=True)).astype(np.float32)
        for block in (1, 11, 10**6):
            monkeypatch.setattr(module, "_BLOCK", block)
            np.testing.assert_array_equal(centred(array, axis, scales), wanted)
    np.testing.assert_array_equal(centred(array, -4), np.zeros_like(array))
    for block in (1, 11, 10**6):
        monkeypatch.setattr(module, "_BLOCK", block)
        wanted = -array[0].astype(np.float64).mean(axis=1, keepdims=True)
        np.testing.assert_array_equal(module.means(array[0], np.float32), wanted.astype(np.float32))


def test_weights_are_never_all_in_memory(tmp_path):
    layers, hidden, each = 6, 512, 4 * 512 * 8192
    g = Graph()
    ids = g.input("ids", I64, (1, 4))

    def weight(i, shape):
        tensor = TensorProto(name=f"w{i}", data_type=F, dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in {"location": "w.bin", "offset": i * each, "length": each}.items():
            tensor.external_data.add(key=key, value=str(value))
        g.initializers.append(tensor)
        return V(g, f"w{i}", F)

    x = g.op("Gather", weight(0, [8192, hidden]), ids, dtype=F)
    scale = g.weight(np.ones(hidden), F)
    for i in range(1, layers + 1):
        n = g.op("LayerNormalization", x, scale, axis=-1)
        wide = g.op("Concat", *[n] * 16, axis=-1)
        x = x + g.op("MatMul", g.op("Tanh", wide), weight(i, [8192, hidden]))
    g.output(g.op("LayerNormalization", x, scale, axis=-1), "y", (1, 4, hidden))
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate((layers + 1) * each)
    onnx.save(g.model(), tmp_path / "m.onnx")
    tracemalloc.start()
    try:
        result, report = rmsnorm_deploy.convert(tmp_path / "m.onnx")
        rmsnorm_deploy.save(result, tmp_path / "out.onnx", source=tmp_path / "m.onnx")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.converted == layers + 1
    assert (tmp_path / "out.onnx.data").stat().st_size >= (layers + 1) * each
    assert peak < 4 * each, "one weight, its bytes, and a block of it in float64"


def test_a_weight_with_less_data_than_it_says(tmp_path):
    g = Streams()
    model = g.finish(g.layers(g.embedded()))
    table = next(t for t in model.graph.initializer if t.name == "table")
    table.raw_data = table.raw_data[:-4]
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="the data of 'table' cannot be read"):
        rmsnorm_deploy.convert(model)
    result, _ = rmsnorm_deploy.convert(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="the data of 'table' cannot be read"):
        rmsnorm_deploy.save(result, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
