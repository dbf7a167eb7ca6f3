"""How exact the kernels are, element by element, against float64: on every instruction set that the machine has.

The bars, with one ULP that of the element itself and not of its row's largest:

* float32: at most 3 ULP, where the mean of the squares is a normal float32;
* 16 bits, rounded once (scale_type float): at least 99.9 % of the elements correctly rounded, the others 1 ULP off;
* 16 bits, rounded twice (scale_type of X's type): at least 99.9 % equal bit for bit to the reference that rounds twice,
  the others equal to it with the normalised value rounded to the other one of its two neighbours.

A bias can cancel what it is added to, and leave of it no more than its rounding errors. Behind a bias the unit is
therefore that of the value before it where that is the larger one, and a result of 16 bits is allowed where a value
before the bias at most 3 float32 ULP from the exact one gives it. Rows of one constant are normalised to one value near
1 throughout; in the 16-bit sums of scale and bias every tie then falls to the same side, so for these sums alone that
is the only bar.
"""

import dataclasses

import numpy as np
import pytest

from tests.support.contract import BF16, DTYPES, F16, F32, Call, ulp, values

SIZES = [1, 7, 64, 100, 128, 896, 1000, 4096, 8192, 8193, 16384]
OPS = ["RMSNorm", "AddRMSNorm", "GeneralRMSNorm"]
MOST_ULP = 3.0
LEAST_RIGHT = 0.999
ORDERS = {  # type of X and scale, type to which the normalised value is rounded
    "float32": (F32, F32),
    "float16 once": (F16, F32),
    "bfloat16 once": (BF16, F32),
    "float16 twice": (F16, F16),
    "bfloat16 twice": (BF16, BF16),
}


def normal(rng, shape):
    return rng.standard_normal(shape)


def constant(rng, shape):
    """Every row has one value: all roundings of a sum go the same way."""
    return np.broadcast_to(rng.uniform(0.5, 4, shape[:-1])[..., None] * rng.choice([-1, 1], shape), shape)


def dominated(rng, shape):
    """One value that is nearly the whole mean."""
    x = rng.standard_normal(shape)
    np.put_along_axis(x, rng.integers(0, shape[-1], shape[:-1])[..., None], 300.0, axis=-1)
    return x


def scaled(spread):
    return lambda rng, shape: rng.standard_normal(shape) * spread


def around(size):
    """Of one magnitude, so that every square is a normal float where that of ``size`` is one."""
    return lambda rng, shape: rng.uniform(0.5, 2, shape) * rng.choice([-size, size], shape)


def up_to(largest):
    def data(rng, shape):
        x = rng.standard_normal(shape)
        return x * (largest / np.abs(x).max())

    return data


def rows_of(x_type):
    """What a row can look like, by name, and the epsilon that goes with it."""
    kinds = {
        "normal": (normal, 1e-6),
        "constant": (constant, 1e-6),
        "constant, no epsilon": (constant, 0.0),
        "one dominant": (dominated, 1e-6),
        "near sqrt(epsilon)": (scaled(1e-3), 1e-6),
        "below sqrt(epsilon)": (scaled(1e-5), 1e-6),
    }
    if x_type == F16:
        kinds |= {"tiny, no epsilon": (scaled(1e-6), 0.0), "huge": (up_to(65504.0 / 2), 1e-6)}
    else:
        kinds |= {"tiny": (around(1e-18), 1e-6), "tiny, no epsilon": (around(1e-18), 0.0), "huge": (up_to(1e18), 1e-6)}
    return kinds


def lay_out(array, columns):
    """``array`` as it is, or with its rows stood up as the columns of one matrix."""
    return np.ascontiguousarray(array.swapaxes(-1, -2)[None]) if columns else np.ascontiguousarray(array)


def calls(op, x_type, round_type, size, columns):
    """The calls for one row length: each kind of rows by each use of the operator."""
    rng = np.random.default_rng([size, columns, x_type, round_type, OPS.index(op)])
    count = max(3, min(40, 4096 // size))
    weight_types = (x_type,) if round_type != F32 or x_type == F32 else (x_type, F32)
    for name, (rows, epsilon) in rows_of(x_type).items():
        x = rows(rng, (count, size)).astype(DTYPES[x_type])
        for scale_type in weight_types:
            scale = values(rng, (size, 1) if columns else (size,), scale_type)
            call = Call(lay_out(x, columns), scale, x_type, scale_type, round_type, F32, (1,), epsilon)
            if op == "AddRMSNorm":
                call.residual = lay_out(rows(rng, (count, size)).astype(x.dtype), columns)
            if op != "GeneralRMSNorm":
                yield name, call
                continue
            bias = values(rng, scale.shape, scale_type)
            floor = float(np.sqrt(np.mean(np.square(x.astype(float)))))  # above some rows and below others
            for part, change in {
                "bias": {"bias": bias},
                "floor": {"rms_floor": floor},
                "outside": {"epsilon_outside": floor / 8},
                "partial": {"partial_size": max(1, size * 2 // 3)},
                "all": {
                    "bias": bias,
                    "rms_floor": floor,
                    "epsilon_outside": floor / 8,
                    "partial_size": max(1, size // 4),
                },
            }.items():
                yield f"{name}, {part}", dataclasses.replace(call, **change)


@dataclasses.dataclass
class Truth:
    """One call's results in float64: rounded to nowhere, before the bias, and normalised only."""

    wanted: np.ndarray
    sum: np.ndarray | None
    unbiased: np.ndarray
    normalised: np.ndarray


def truth(call):
    wanted, total = call.expected()
    plain = dataclasses.replace(call, bias=None)
    alone = dataclasses.replace(plain, scale=np.ones((), DTYPES[call.scale_type]), round_type=F32)
    unbiased = wanted if call.bias is None else plain.expected()[0]
    return Truth(wanted, None if call.residual is None else total, unbiased, alone.expected()[0])


@dataclasses.dataclass
class Figures:
    """What one result is like, or several together."""

    worst: float = 0.0  # error of the worst element in ULP
    wrong: int = 0  # elements that are not what they should be, though within the bar
    count: int = 0

    def add(self, other):
        self.worst = max(self.worst, other.worst)
        self.wrong += other.wrong
        self.count += other.count


def differ(a, b):
    """Where two arrays are not the same number; a NaN is one."""
    return (a != b) & ~(np.isnan(a) & np.isnan(b))


def float32_figures(call, y, t):
    unit = ulp(np.maximum(np.abs(t.wanted), np.abs(t.unbiased)), F32)
    wrong = differ(y, t.wanted.astype(np.float32))
    error = np.abs(y.astype(np.float64) - t.wanted) / unit
    return Figures(float(error[wrong].max(initial=0)), int(wrong.sum()), y.size)


def rounded(value, data_type):
    """To the nearest of a type, ties to even; overflow becomes infinity."""
    with np.errstate(over="ignore"):
        return value.astype(DTYPES[data_type]).astype(np.float64)


def rounded_once_figures(call, y, t):
    got, right = y.astype(np.float64), rounded(t.wanted, call.x_type)
    wrong = differ(got, right)
    unit = ulp(right, call.x_type)
    allowed = np.abs(got - right) <= unit * (1 + 1e-9)
    if call.bias is not None:
        spread = MOST_ULP * ulp(t.unbiased, F32)
        low, high = rounded(t.wanted - spread, call.x_type), rounded(t.wanted + spread, call.x_type)
        allowed |= (low <= got) & (got <= high)
        unit = np.maximum(unit, spread)
    off = np.abs(got[wrong] - right[wrong]) / unit[wrong]
    assert allowed[wrong].all(), f"{off.max()} ULP off"
    return Figures(float(off.max(initial=0)), int(wrong.sum()), y.size)


def other_neighbour(exact, nearest, data_type):
    """The neighbour of ``exact`` in a type on the other side than ``nearest``, or ``nearest`` where that is exact."""
    towards = np.where(exact > nearest, np.inf, -np.inf).astype(DTYPES[data_type])
    with np.errstate(all="ignore"):
        moved = np.nextafter(nearest.astype(DTYPES[data_type]), towards).astype(np.float64)
    return np.where(exact == nearest, nearest, moved)


def rounded_twice_figures(call, y, t):
    """The products of 16-bit values are exact in float32, so a step from n on is right or wrong and never near."""

    def finished(n):
        v = rounded(n * call.scale.astype(np.float64), call.x_type)
        return v if call.bias is None else rounded(v + call.bias.astype(np.float64), call.x_type)

    nearest = rounded(t.normalised, call.x_type)
    got, right = y.astype(np.float64), rounded(t.wanted, call.x_type)
    np.testing.assert_array_equal(finished(nearest), right)
    other = finished(other_neighbour(t.normalised, nearest, call.x_type))
    wrong = differ(got, right)
    np.testing.assert_array_equal(got[wrong], other[wrong])
    return Figures(1.0 if wrong.any() else 0.0, int(wrong.sum()), y.size)


def figures_of(call, y, total, t, *, constant):
    """Judge one result by what has to hold for each call alone; ``constant``: whether its rows are of one value."""
    if t.sum is not None:
        np.testing.assert_array_equal(total, t.sum)
    if call.x_type == F32:
        found = float32_figures(call, y, t)
        assert found.worst <= MOST_ULP, f"{found.worst:.2f} ULP off"
        return found
    judge = rounded_once_figures if call.round_type == F32 else rounded_twice_figures
    found = judge(call, y, t)
    if constant and call.bias is not None and call.round_type == F32:
        return Figures(found.worst)
    # How many may be wrong, and what luck adds where that is few; in rows of one value there are few different results.
    chance = (1 - LEAST_RIGHT) * found.count
    most = found.count if constant else chance + 4 * np.sqrt(chance) + 1
    assert found.wrong <= most, f"{found.wrong} of {found.count} elements are wrong"
    return found


def usable(library):
    names = (name for name in (b"portable", b"avx2", b"avx512") if library.rmsnorm_deploy_cpu_set_isa(name) == 0)
    return list(names)


@pytest.fixture
def every_isa(library):
    """The library, and the names of the instruction sets that this machine has."""
    yield library, usable(library)
    library.rmsnorm_deploy_cpu_set_isa(None)


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("order", list(ORDERS))
def test_every_element(every_isa, order, op, columns):
    library, names = every_isa
    totals = {name: Figures() for name in names}
    for size in SIZES:
        for kind, call in calls(op, *ORDERS[order], size, columns):
            t = truth(call)
            constant = kind.startswith("constant") or size == 1
            for name in names:
                library.rmsnorm_deploy_cpu_set_isa(name)
                try:
                    totals[name].add(figures_of(call, *call.run(library), t, constant=constant))
                except AssertionError as error:
                    raise AssertionError(f"{name.decode()}, {size} features, rows: {kind}") from error
    if ORDERS[order][0] != F32:
        for name, total in totals.items():
            assert total.wrong <= (1 - LEAST_RIGHT) * total.count, f"{name.decode()}: {total}"
