"""A kernel's arguments: tensors of any rank, as they are, viewed with one dimension in front and one behind."""

from __future__ import annotations

from rmsnorm_deploy.tvm.schedules.norm import Norm


def everything(shape: str) -> str:
    """The indices of all of a tensor of this shape."""
    return ", ".join(f"0:{d.strip()}" for d in shape.strip("()").split(",") if d.strip())


def _names(letter: str, count: int) -> list[str]:
    return [letter] if count == 1 else [f"{letter}{i}" for i in range(count)]


def _product(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"({' * '.join(names)})" if names else "1"


def _tuple(dims: list[str]) -> str:
    return f"({', '.join(dims)})"


class Arguments:
    """What the text of a kernel needs to know of its arguments.

    Attributes:
        norm: the norm.
        size: number of features, an expression.
        n: number of rows, an expression.
        m: number of values beside one another, behind the features, an expression.
        shape: of X, as the kernel views it: (n, size), or (n, size, m) where ``norm.columns``.
        whole: of X, as it is.
        vector: of a scale or bias that is the same for every row.
    """

    def __init__(self, norm: Norm) -> None:
        self.norm = norm
        self.size = "h" if norm.size is None else str(norm.size)
        self.outer = _names("n", norm.outer_rank)
        self.inner = _names("m", norm.inner_rank) if norm.columns else []
        self.n, self.m = _product(self.outer), _product(self.inner)
        self.shape = _tuple([self.n, self.size, *([self.m] if norm.columns else [])])
        self.whole = _tuple([*self.outer, self.size, *self.inner])
        self.vector = f"({self.size},)"

    def arguments(self) -> list[tuple[str, str, str]]:
        """Name, shape and type of each: X, residual, scale, bias, Y, sum. A scale or bias may be a vector."""
        n, shape, vector = self.norm, self.shape, self.vector
        given = [("X", shape, n.dtype)]
        given += [("R", shape, n.dtype)] if n.adds else []
        given += [("W", shape if n.full_scale else vector, n.scale_dtype)]
        given += [("B", shape if n.full_bias else vector, n.scale_dtype)] if n.biased else []
        given += [("Y", shape, n.dtype)]
        return given + ([("S", shape, n.dtype)] if n.adds else [])

    def head(self) -> list[str]:
        """Signature and buffers; a tensor of more dimensions is viewed as one of fewer."""
        arguments = self.arguments()
        symbols = [*self.outer, *(["h"] if self.norm.size is None else []), *self.inner]
        lines = self._signature([name for name, _, _ in arguments], symbols)
        viewed = [a for a in arguments if self._viewed(a[1])]
        for name, shape, dtype in arguments:
            given = (f"{name}_", self.whole) if self._viewed(shape) else (name, shape)
            lines.append(f'    {given[0]} = T.match_buffer(p{name}, {given[1]}, "{dtype}")')
        return [*lines, *(f'    {n} = T.decl_buffer({shape}, "{dtype}", data={n}_.data)' for n, shape, dtype in viewed)]

    def _viewed(self, shape: str) -> bool:
        """Whether a tensor has more dimensions than the kernel is written for."""
        return shape == self.shape != self.whole

    def region(self, name: str, shape: str) -> str:
        """All of an argument."""
        if self._viewed(shape):
            name, shape = f"{name}_", self.whole
        return f"{name}[{everything(shape)}]"

    def _signature(self, names: list[str], symbols: list[str]) -> list[str]:
        """The beginning: a handle for each argument, and the sizes that are known at run time only."""
        handles = ", ".join(f"p{name}: T.handle" for name in names)
        return [
            "@T.prim_func(s_tir=True)",
            f"def {self.norm.name}({handles}):",
            # op_pattern 8 is "opaque": nothing is to be fused into it
            '    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})',
            *(f"    {s} = T.int64()" for s in symbols),
        ]
