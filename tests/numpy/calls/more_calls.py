"""How the names of ``meshwright.numpy`` that are rarely used may be called: ufuncs, sets, bits, grids, histograms."""

from __future__ import annotations

from tests.numpy.calls.drawing import ANY, NUMBER, REAL, Calls, Drawer, NotDrawn, Unfit, calls


def two_sets(indices: bool = False) -> Calls:
    """Two arrays of whole numbers and how many elements their set is given."""

    def draw(d: Drawer) -> str:
        x, y = d.array("iuf", rank=(1, 2), within=(-3, 5)), d.array("iuf", rank=(1, 2), within=(-3, 5))
        text = f"{x}, {y}, size={d.integer(1, 6)}" + d.option(", fill_value=7")
        return text + (d.option(", return_indices=True") if indices else "")

    return calls(draw)


def different(d: Drawer) -> str:
    x = d.array("iu", rank=(1, 2), test=lambda x: x.size > 0)
    return f"{x}, size={d.integer(1, 5)}" + d.option(", fill_value=2")


def bits(d: Drawer) -> str:
    x = d.array("biu", rank=(1, 3))
    return f"{x}" + d.along(x, none=True) + d.option(", bitorder='little'")


def unpacked(d: Drawer) -> str:
    x = d.array("u", rank=(1, 2), test=lambda x: x.dtype == "uint8")
    return f"{x}" + d.along(x, none=True) + d.option(f", count={d.integer(-3, 12)}") + d.option(", bitorder='little'")


def pieces(d: Drawer) -> str:
    x = d.array("f")
    return f"{x}, [{x} > 0.5, {x} < -0.5], [{d.number('f')}, lambda x: x * 2, lambda x: x - 1]"


def placed(d: Drawer) -> str:
    x = d.array(NUMBER, rank=(1, 2), test=lambda x: x.size > 0)
    return f"{x}, {d.array('b', x.shape)}, {d.array('i', rank=1, test=lambda v: v.size > 0)}, inplace=False"


def put(d: Drawer) -> str:
    x = d.array(NUMBER, rank=(1, 2), test=lambda x: x.size > 0)
    places = [d.integer(-x.size, x.size - 1) for _ in range(2)]
    if places[0] % x.size == places[1] % x.size:
        raise Unfit("which of two values stays is nobody's business")
    return f"{x}, np_.array({places}), {d.number('i')}, inplace=False" + d.option(", mode='wrap'", ", mode='clip'")


def over_axes(d: Drawer) -> str:
    x = d.array("f", rank=(1, 3), test=lambda x: x.size > 0)
    return f"np_.sum, {x}, {d.axes(x, 1)}"


def divided(d: Drawer) -> str:
    return f"{d.array('f', rank=1, within=(0.5, 3))}, {d.array('f', rank=1, within=(1, 3), test=lambda x: x.size > 0)}"


def unwrapped(d: Drawer) -> str:
    x = d.array("f", rank=(1, 2), test=lambda x: x.size > 0)
    return f"{x}" + d.along(x) + d.option(", period=2.0")


def points(d: Drawer) -> str:
    rows = d.choose((3, 4))
    x = d.array("f", (rows, 2), within=(-3, 3))
    text = d.choose((", bins=2", ", bins=(2, 3)", ", bins=3, range=((-1, 1), (-2, 2))"))
    return f"{x}{text}" + d.option(f", weights={d.array('f', (rows,))}") + d.option(", density=True")


def two_columns(d: Drawer) -> str:
    size = d.choose((3, 4))
    x, y = d.array("f", (size,), within=(-3, 3)), d.array("f", (size,), within=(-3, 3))
    return f"{x}, {y}" + d.choose((", bins=2", ", bins=(2, 3)"))


def square(d: Drawer) -> str:
    return str(d.array(ANY, d.choose(((2, 2), (3, 3), (2, 2, 2)))))


_CONSTANT = NotDrawn("not a function")
_FILES = NotDrawn("of files and buffers: compared by name in test_more_numpy")

MORE: dict[str, Calls | NotDrawn] = {
    "apply_over_axes": calls(over_axes),
    "diag_indices_from": calls(square),
    "einsum_path": NotDrawn("compared by name: the path depends on who plans it"),
    "frexp": calls(lambda d: str(d.array("f", within=(0.01, 100)))),
    "frompyfunc": NotDrawn("returns a function; compared by name in tests/jax_names"),
    "histogram2d": calls(two_columns),
    "histogramdd": calls(points),
    "intersect1d": two_sets(indices=True),
    "mask_indices": calls(lambda d: f"{d.integer(1, 4)}, np_.triu, {d.integer(-1, 1)}, size={d.integer(1, 9)}"),
    "packbits": calls(bits),
    "piecewise": calls(pieces),
    "place": calls(placed),
    "polydiv": calls(divided),
    "put": calls(put),
    "roots": NotDrawn("compared by name: zeros come in any order"),
    "setdiff1d": two_sets(),
    "setxor1d": two_sets(),
    "sort_complex": calls(lambda d: str(d.array(NUMBER, rank=(1, 2)))),
    "spacing": calls(lambda d: str(d.array("f", within=(0.01, 100)))),
    "trim_zeros": calls(lambda d: str(d.array(REAL, rank=1)), concrete=True),
    "union1d": two_sets(),
    "unique_all": calls(different),
    "unique_counts": calls(different),
    "unique_inverse": calls(different),
    "unique_values": calls(different),
    "unpackbits": calls(unpacked),
    "unwrap": calls(unwrapped),
    **dict.fromkeys(
        (
            "int2",
            "uint2",
            "int4",
            "uint4",
            "float8_e3m4",
            "float8_e4m3",
            "float8_e4m3b11fnuz",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
        ),
        NotDrawn("stored and converted, and computed with by no op"),
    ),
    **dict.fromkeys(
        (
            "ComplexWarning",
            "c_",
            "character",
            "flexible",
            "index_exp",
            "mgrid",
            "object_",
            "ogrid",
            "r_",
            "s_",
            "ufunc",
        ),
        _CONSTANT,
    ),
    **dict.fromkeys(
        (
            "frombuffer",
            "fromfile",
            "fromiter",
            "fromstring",
            "get_printoptions",
            "load",
            "printoptions",
            "save",
            "savez",
            "set_printoptions",
        ),
        _FILES,
    ),
}
