"""What may be written with an array itself: operators, methods, indices and updates, as whole expressions."""

from __future__ import annotations

from tests.numpy.calls.drawing import ANY, NUMBER, REAL, WHOLE, Calls, Drawer, NotDrawn, Operand, calls


def operator(sign: str, kinds: str = ANY) -> Calls:
    def draw(d: Drawer) -> str:
        x = d.array(kinds)
        return f" {sign} ".join(d.shuffled([str(x), d.beside(x, kinds)]))

    return calls(draw)


def method(text: str, kinds: str = ANY, least: int = 0, options: tuple[str, ...] = ()) -> Calls:
    """``text`` with ``{axis}`` (any one), ``{over}`` (reductions) and ``{dtype}`` filled in."""

    def draw(d: Drawer) -> str:
        x = d.array(kinds, rank=(least, 3))
        axis = d.axis(x) if x.ndim else 0
        over = d.over(x).removeprefix(", ")
        extra = d.options(*options)
        return f"{x}.{text.format(axis=axis, over=over, dtype=d.dtype(), extra=extra if over else extra[2:])}"

    return calls(draw)


def shifted(sign: str) -> Calls:
    return calls(lambda d: f"{d.array('iu')} {sign} {d.integer(0, 6)}")


def powered(d: Drawer) -> str:
    x = d.array(within=(0.2, 3) if d.flag() else None)
    return f"{x} ** {d.choose((d.beside(x), '2', '3', '-1', '0.5', '0'))}"


def multiplied(d: Drawer) -> str:
    x = d.array(rank=(1, 3))
    return f"{x} @ {d.array(ANY, d.choose([x.shape[-1:], (x.shape[-1], 2)]))}"


def index(d: Drawer, x: Operand) -> str:
    """What may stand in brackets."""
    parts: list[str] = []
    for size in x.shape[: d.integer(0, x.ndim)]:
        how = d.integer(0, 9)
        if how < 2 and size:
            parts.append(str(d.integer(-size, size - 1)))
        elif how < 5:
            step = d.choose(("", ":1", ":2", ":-1", ":-2"))
            bound = d.choose(("", str(d.integer(-size - 1, size + 1))))
            parts.append(f"{d.choose(('', str(d.integer(-size - 1, size + 1))))}:{bound}{step}")
        elif how == 5:
            parts.append(str(d.array("i", d.shape(0, 1))))
        elif how == 6 and size:
            parts.append(f"np_.array([{d.integer(-size, size - 1)}, {d.integer(0, size - 1)}])")
        elif how == 7:
            parts.append(f"np_.array({[d.flag() for _ in range(size)]}, dtype=bool)" if d.flag() else ":")
        else:
            parts.append("None, :")
    if d.flag(0.2) and len(parts) < x.ndim:
        parts.append("...")
    return ", ".join(parts) or "..."


def indexed(d: Drawer) -> str:
    x = d.array()
    return f"{x}[{index(d, x)}]"


def masked(d: Drawer) -> str:
    x = d.array()
    return f"{x}[{d.array('b', x.shape)}]"


def gotten(d: Drawer) -> str:
    x = d.array()
    options = d.choose(("", "mode='clip'", "mode='fill', fill_value=0", "mode='wrap'"))
    return f"{x}.at[{index(d, x)}].get({options})"


def updated(name: str, kinds: str = ANY) -> Calls:
    def draw(d: Drawer) -> str:
        x = d.array(kinds)
        value = d.number("i" if x.kind in "biu" else "if") if d.flag() else str(d.array(x.kind, ()))
        mode = d.choose(("", "", ", mode='drop'", ", mode='clip'", ", mode='fill'"))
        return f"{x}.at[{index(d, x)}].{name}({value}{mode})"

    return calls(draw)


def mask_update(d: Drawer) -> str:
    x = d.array()
    return f"{x}.at[{d.array('b', x.shape)}].set({d.number('i')})"


def viewed(d: Drawer) -> str:
    x = d.array(ANY.replace("c", ""), rank=(1, 2))
    return f"{x}.view({d.dtype('iuf')})"


def repeated(d: Drawer) -> str:
    x = d.array()
    return f"{x}.repeat({d.integer(0, 2)}{d.along(x, none=True)})"


OWN = NotDrawn("where an array is, or its contents; no function of it")

ARRAY: dict[str, Calls | NotDrawn] = {
    "+": operator("+"),
    "-": operator("-", NUMBER),
    "*": operator("*"),
    "/": operator("/"),
    "//": operator("//", REAL),
    "%": operator("%", REAL),
    "**": calls(powered),
    "@": calls(multiplied),
    "&": operator("&", WHOLE),
    "|": operator("|", WHOLE),
    "^": operator("^", WHOLE),
    "<<": shifted("<<"),
    ">>": shifted(">>"),
    "==": operator("=="),
    "!=": operator("!="),
    "<": operator("<"),
    "<=": operator("<="),
    ">": operator(">"),
    ">=": operator(">="),
    "unary -": calls(lambda d: f"-{d.array(NUMBER)}"),
    "unary +": calls(lambda d: f"+{d.array(NUMBER)}"),
    "~": calls(lambda d: f"~{d.array(WHOLE)}"),
    "abs()": calls(lambda d: f"abs({d.array(NUMBER)})"),
    "divmod()": calls(lambda d: (lambda x: f"divmod({x}, {d.beside(x, REAL)})")(d.array(REAL))),
    "round()": calls(lambda d: f"round({d.array('f')}, {d.integer(-1, 2)})"),
    "[]": calls(indexed),
    "[mask]": calls(masked, concrete=True),
    ".at[].get": calls(gotten),
    ".at[].set": updated("set"),
    ".at[].add": updated("add", NUMBER),
    ".at[].multiply": updated("multiply", NUMBER),
    ".at[].mul": updated("mul", NUMBER),
    ".at[].subtract": updated("subtract", NUMBER),
    ".at[].divide": updated("divide", "fc"),
    ".at[].power": updated("power", "f"),
    ".at[].max": updated("max", "iuf"),
    ".at[].min": updated("min", "iuf"),
    ".at[].apply": calls(lambda d: (lambda x: f"{x}.at[{index(d, x)}].apply(np_.square)")(d.array(NUMBER))),
    ".at[mask].set": calls(mask_update),
    "T": method("T"),
    "mT": method("mT", least=2),
    "real": method("real"),
    "imag": method("imag"),
    "all": method("all({over}{extra})", options=(", keepdims=True",)),
    "any": method("any({over}{extra})", options=(", keepdims=True",)),
    "argmax": method("argmax(axis={axis})", REAL, 1),
    "argmin": method("argmin(axis={axis})", REAL, 1),
    "argsort": method("argsort(axis={axis})", REAL, 1),
    "astype": method("astype({dtype})"),
    "clip": method("clip(0, 2)", REAL),
    "conj": method("conj()"),
    "conjugate": method("conjugate()"),
    "copy": method("copy()"),
    "cumprod": method("cumprod(axis={axis})", least=1),
    "cumsum": method("cumsum(axis={axis})", least=1),
    "diagonal": method("diagonal()", least=2),
    "dot": method("dot(3)"),
    "flatten": method("flatten()"),
    "item": NotDrawn("a Python number"),
    "max": method("max({over}{extra})", REAL, options=(", keepdims=True",)),
    "mean": method("mean({over}{extra})", NUMBER, options=(", keepdims=True",)),
    "min": method("min({over}{extra})", REAL, options=(", keepdims=True",)),
    "nonzero": calls(lambda d: f"{d.array(rank=(1, 3))}.nonzero(size=3)"),
    "prod": method("prod({over}{extra})", options=(", keepdims=True",)),
    "ptp": method("ptp({over})", "if"),
    "ravel": method("ravel()"),
    "repeat": calls(repeated),
    "reshape": calls(lambda d: (lambda x: f"{x}.reshape({', '.join(map(str, d.reshaped(x))) or '()'})")(d.array())),
    "round": method("round()", NUMBER),
    "searchsorted": calls(lambda d: f"np_.sort({d.array('f', rank=1)}).searchsorted({d.array('f')})"),
    "sort": method("sort(axis={axis})", REAL, 1),
    "squeeze": method("squeeze()"),
    "std": method("std({over}{extra})", NUMBER, options=(", keepdims=True",)),
    "sum": method("sum({over}{extra})", options=(", keepdims=True",)),
    "swapaxes": method("swapaxes(0, {axis})", least=1),
    "take": method("take(0, axis={axis})", least=1),
    "trace": method("trace()", least=2),
    "transpose": method("transpose()"),
    "var": method("var({over}{extra})", NUMBER, options=(", keepdims=True",)),
    "view": calls(viewed),
    **dict.fromkeys(
        [
            "addressable_data",
            "addressable_shards",
            "at",
            "aval",  # which meshwright.jax gives them
            "block_until_ready",
            "committed",
            "data",
            "delete",
            "device",
            "devices",
            "dtype",
            "flat",
            "global_shards",
            "is_deleted",
            "is_fully_addressable",
            "is_fully_replicated",
            "itemsize",
            "nbytes",
            "ndim",
            "on_device_size_in_bytes",
            "shape",
            "sharding",
            "size",
            "to_device",
            "tobytes",
            "tolist",
            "type",
            "weak_type",
        ],
        OWN,
    ),
}
