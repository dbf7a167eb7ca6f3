"""Who may import whom, between rooms and inside each, and what importing the package loads.

``python -m tests.docs.test_architecture`` prints ``FILES`` as the imports have it now.
"""

import ast
import graphlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rmsnorm_deploy

PACKAGE = Path(rmsnorm_deploy.__file__).parent

# Each room, and the rooms that it may import. A room of tvm/ may import what tvm itself may, too. The command line may
# import everything, and is imported by nobody.
ROOMS = {
    "errors": set(),
    "installed": {"errors"},
    "op": set(),
    "model": {"errors"},
    "recognise": {"model", "op"},
    "converting": {"errors", "fusing", "installed", "model", "op", "recognise"},
    "fusing": {"errors", "installed", "model", "op", "recognise"},
    "report": {"check", "converting", "errors", "fusing", "installed", "model", "op", "recognise"},
    "run": {"errors", "model", "op"},
    "check": {"errors", "fusing", "installed", "model", "op", "run"},
    "torch": {"errors", "fusing", "model", "op"},
    "tvm": {"check", "errors", "fusing", "model", "op", "run"},
    "tvm/targets": set(),
    "tvm/schedules": {"tvm/targets"},
    "tvm/sizes": set(),
    "tvm/importer": {"tvm/schedules", "tvm/sizes"},
    "tvm/passes": {"tvm/schedules", "tvm/targets"},
    "tvm/artefact": {"tvm/targets"},
    "tvm/tuning": {"tvm/artefact", "tvm/importer", "tvm/passes", "tvm/schedules", "tvm/targets"},
    "tvm/steps": set(),
    "tvm/compiling": {
        "tvm/steps",
        *("tvm/artefact", "tvm/importer", "tvm/passes", "tvm/schedules", "tvm/sizes", "tvm/targets", "tvm/tuning"),
    },
}
FREE = {"cli", "__init__", "__main__"}

# The files of each room, from the lowest to the highest: a file may import those before it. A new file goes anywhere
# behind what it imports and before what imports it. A star stands for every file of a folder, none of which imports
# another.
FILES = """
check: __init__ alone sites ulp outside machine shares result condition evaluator guess inner timing doctor exact
    measured original site_values clock comparison site_runs bench beginning site_check verify demo
cli: signals streams commands options outcome sources printing tree reporting app writing __init__ each commands/*
converting: __init__ centring norms writers at stream writing moving products contents contrib moves bias streams
    decide apply report narrow convert
fusing: __init__ clearing copies draft names report touched foreign guard neighbours form inlined our_node forms
    trailing mending provenance forms/* plan apply prepare fuse pass_ unfuse
model: __init__ exchange turns leftovers graphs copying dead dims files skeleton text atomic calls equations external
    many_dimensions splice commit cut sound made load weights validity opset save
op: dtypes versions quantising retyping definition formula naming reference schema traces words body __init__
    known_bodies
recognise: __init__ match scopes element_types neighbours folding sameness long_vectors origin refusal bindings
    computed_shapes reshaped inference factor size sizes state facts checks leading quantising activation fused_forms
    magnitude our_nodes residual rounding step gate square keepdims normalised output statistic reduction variance
    grammar ending engine
report: __init__ text style layout values chart drawing neighbourhood markup content words page summary write
run: __init__ binary decoder devices imports nvidia ort runnable traces toolchain library inputs providers registering
    runner session
torch: naming eager operators translating exporting __init__
tvm: steps compiling __init__
tvm/artefact: __init__ arrays description cubin feeds carried weights linking load
tvm/importer: __init__ dtypes large table expand operator quantising sixteen_bits prepare attention fitting gathering
    layer_norm rotary shaping slicing norms quantised matrices refusals grouped_query convert
tvm/passes: __init__ views lower placing rest rest_cpu tidy dequantise folds seen constants convolutions reductions
    products patches by_cublas pipeline
tvm/schedules: __init__ norm convolutions products/product cpu gpu products script products/weight products/stored
    reductions rest rest/names rest/functions arguments convolutions/convolution protocol rest/elementwise rest/legal
    values cpu/writer flat gpu/values cpu/any_size cpu/columns cpu/rows convolutions/reach products/cblas
    products/cublas reductions/centred reductions/folds reductions/softmax gpu/grid gpu/vectors cpu/streaming
    convolutions/direct convolutions/by_product convolutions/transposed products/panels gpu/columns gpu/kept
    gpu/streamed cpu/choose gpu/choose registry
tvm/sizes: __init__ dimensions input_shapes kernel broadcasting shape_values folding
tvm/targets: __init__ machines gpu gpus blas gpus/* registry cublas device resolve
tvm/tuning: __init__ log worker judge devices measure runner choosing search
"""


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def named(path):
    return path.relative_to(PACKAGE).with_suffix("").as_posix().removesuffix("/__init__")


NAMES = {named(path) for path in modules()}


def room_of(name):
    """The room that a module is in: a folder, one of the folders in tvm/, or a file of the top."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == "tvm" else parts[0]


def place_of(name):
    """The folder that is a room, or has rooms in it, and the file's name in there."""
    room = room_of(name)
    if (PACKAGE / room).is_dir():
        return room, name.removeprefix(room).lstrip("/") or "__init__"
    return room.rpartition("/")[0], room.rpartition("/")[2]


def written():
    """``FILES`` as a table."""
    rooms = re.split(r"^(\S+):", FILES, flags=re.MULTILINE)[1:]
    return {room: files.split() for room, files in zip(rooms[::2], rooms[1::2], strict=True)}


def starred(room, file):
    """The entry of a file in ``FILES``: its name, or the star of its folder."""
    star = f"{file.rpartition('/')[0]}/*"
    return star if star in written().get(room, ()) else file


def imported(path):
    """Our own modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rmsnorm_deploy":
            base = node.module.replace(".", "/").removeprefix("rmsnorm_deploy").lstrip("/")
            for alias in node.names:
                inner = f"{base}/{alias.name}".lstrip("/")
                if inner != "__version__":  # anybody may say which release this is
                    found.add(inner if inner in NAMES else base)
        elif isinstance(node, ast.Import):
            found |= {
                a.name.replace(".", "/").removeprefix("rmsnorm_deploy/") for a in node.names if "rmsnorm_d" in a.name
            }
    return found


@pytest.mark.parametrize("path", modules(), ids=named)
def test_imports_follow_the_arrows(path):
    room = room_of(named(path))
    if room in FREE or named(path) in FREE or named(path) == "tvm":
        return
    assert room in ROOMS, f"{room} is new: say what it may import"
    allowed = {room, *ROOMS[room], *(ROOMS["tvm"] if room.startswith("tvm/") else ())}
    assert {room_of(name) for name in imported(path)} <= allowed


@pytest.mark.parametrize("path", [p for p in modules() if p.parent != PACKAGE], ids=named)
def test_inside_a_room_files_import_only_lower_ones(path):
    room, file = place_of(named(path))
    files, file = written()[room], starred(room, file)
    assert file in files, f"{file} is new in {room}: put it into FILES behind what it imports"
    inside = {starred(room, other) for place, other in map(place_of, imported(path)) if place == room and other != file}
    assert inside <= set(files[: files.index(file)]), f"{file} imports what stands behind it in FILES"


def test_every_file_that_is_listed_is_there():
    there = {(room, starred(room, file)) for room, file in map(place_of, NAMES)}
    assert not [(room, file) for room, files in written().items() for file in files if (room, file) not in there]


def test_no_module_is_hidden_by_something_of_its_name():
    """Else `import a.b` and `from a import b` would be two things, depending on what was imported before."""
    code = (
        "import importlib, pkgutil, sys, types, rmsnorm_deploy\n"
        "def look(package):\n"
        "    for found in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "        if found.name.startswith(('rmsnorm_deploy.t', 'rmsnorm_deploy.__main__')): continue\n"
        "        module = importlib.import_module(found.name)\n"
        "        assert getattr(package, found.name.rpartition('.')[2]) is module, found.name\n"
        "        if found.ispkg: look(module)\n"
        "there = {n: getattr(rmsnorm_deploy, n) for n in rmsnorm_deploy.__all__}; look(rmsnorm_deploy)\n"
        "assert all(getattr(rmsnorm_deploy, n) is value for n, value in there.items())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", modules(), ids=named)
def test_only_the_command_line_prints(path):
    if room_of(named(path)) == "cli":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        called = node.func if isinstance(node, ast.Call) else None
        assert not (isinstance(called, ast.Name) and called.id == "print"), f"{path.name}:{node.lineno} prints"


def test_importing_the_package_loads_no_runtime_and_registers_nothing():
    code = (
        "import sys, rmsnorm_deploy, onnx; "
        "heavy = {'onnxruntime', 'tvm', 'torch', 'typer', 'rich'} & set(sys.modules); assert not heavy, heavy; "
        "assert not onnx.defs.has('RMSNorm', 'rmsnorm_deploy')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_machine_or_registry_is_named():
    root = PACKAGE.parent
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    files = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        path = root / name
        if path.suffix in {".onnx", ".bin"} or not path.is_file() or path == Path(__file__):
            continue
        text = path.read_text(errors="ignore")
        for wrong in ("/wo" + "rk/", "index-" + "url"):
            assert wrong not in text, f"{name} names {wrong}"


def main():
    """Print the order that the imports ask for."""
    rooms = {}
    for path in modules():
        room, file = place_of(named(path))
        inside = {starred(room, other) for place, other in map(place_of, imported(path)) if place == room}
        rooms.setdefault(room, {}).setdefault(starred(room, file), set()).update(inside - {starred(room, file)})
    for room, files in sorted(rooms.items()):
        if room:
            # graphlib goes through what is ready in the order in which it was told, so the order stays from run to run
            ordered = graphlib.TopologicalSorter({name: sorted(files[name]) for name in sorted(files)}).static_order()
            line = f"{room}: {' '.join(ordered)}"
            sys.stdout.write(textwrap.fill(line, 118, subsequent_indent="    ") + "\n")


if __name__ == "__main__":
    main()
