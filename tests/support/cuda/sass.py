"""Machine code of the CUDA kernels as ``cuobjdump`` prints it, and how many instructions a warp issues for its rows."""

import dataclasses
import heapq
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

# A load of rows: not of scales, which are constant.
LOAD = r"LDG\.(?!.*CONSTANT).*128"


def tool():
    """``cuobjdump`` of the PATH, or of PyPI's nvidia-cuda-cuobjdump; None without it or the nvdisasm that it calls."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(f) for f in spec.submodule_search_locations or ()] if spec else []
    path = os.pathsep.join([os.environ.get("PATH", ""), *(str(p) for f in folders for p in f.glob("*/bin"))])
    return shutil.which("cuobjdump", path=path) if shutil.which("nvdisasm", path=path) else None


def functions(cuobjdump, file, architecture=None):
    """``{mangled name: code}`` of an object file, for one architecture (``sm_90``) or for the only one that it has."""
    command = [cuobjdump, "--dump-sass", *(["-arch", architecture] if architecture else []), str(file)]
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(cuobjdump).parent)])  # where nvdisasm is
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PATH": path})
    parts = done.stdout.split("Function : ")[1:]
    return {part.split("\n")[0].strip(): part for part in parts}


@dataclasses.dataclass
class Instruction:
    address: int
    predicated: bool
    name: str
    operands: str


def instructions(code):
    """All instructions of one function's code, in order."""
    found = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+ )?\s*([A-Z][\w.]*)\s*([^;]*);", code)
    return [Instruction(int(address, 16), bool(guard), name, rest) for address, guard, name, rest in found]


def names(code):
    """The names of all instructions of one function, in order, with what stands behind a dot."""
    return [instruction.name for instruction in instructions(code)]


def _successors(code):
    at = {instruction.address: i for i, instruction in enumerate(code)}
    edges = []
    for i, instruction in enumerate(code):
        following = [i + 1] if i + 1 < len(code) else []
        if instruction.name.startswith(("BRA", "JMP", "BRX", "CALL", "RET", "EXIT")):
            target = re.search(r"(0x[0-9a-f]+)", instruction.operands)
            # A predicate may also be among the operands: BRA P1, 0x80; BRA.DIV ~URZ, 0x80.
            always = not instruction.predicated and not re.match(r"!?U?P\d|~|UR|R\d", instruction.operands)
            following = [] if always else following
            if instruction.name.startswith(("BRA", "JMP")) and target and int(target[1], 16) in at:
                following = [*following, at[int(target[1], 16)]]
        edges.append(following)
    return edges


def row_path(code, chunks, exchanges):
    """The instructions that a warp issues from one load of rows to the next: the shortest way through the kernel's loop
    that loads and stores so many chunks, exchanges sums so often and takes a root, which is that of ordinary rows. None
    where there is no such loop.
    """
    stages = (*[LOAD] * chunks, *["SHFL"] * exchanges, r"MUFU\.RSQ", *[r"STG\..*128"] * chunks)
    code = instructions(code)
    edges = _successors(code)
    best = None
    first = next((i for i, instruction in enumerate(code) if re.match(LOAD, instruction.name)), None)
    if first is None:
        return None
    queue = [(1, first, 1)]
    came = {(first, 1): None}
    settled = set()
    while queue:
        cost, node, stage = heapq.heappop(queue)
        if (node, stage) in settled:
            continue
        settled.add((node, stage))
        for to in edges[node]:
            if to == first and stage == len(stages):
                best = (node, stage)
                queue = []
                break
            name = code[to].name
            after = stage + 1 if stage < len(stages) and re.match(stages[stage], name) else stage
            if (to, after) not in came:
                came[to, after] = (node, stage)
                heapq.heappush(queue, (cost + 1, to, after))
    path = []
    while best is not None:
        path.append(code[best[0]])
        best = came[best]
    return path[::-1] or None
