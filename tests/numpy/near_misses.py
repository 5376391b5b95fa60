"""Calls that are nearly right: one axis, size, word, dtype or operand of a call that JAX takes is another one.

What JAX refuses of them is refused, and with an error of ours: called at once, and while it is traced.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import meshwright as mw
from tests.numpy.bad_arguments import ACCEPTED, ALL_TABLES, limited, of_the_call
from tests.numpy.calls.array_calls import ARRAY
from tests.numpy.calls.drawing import Calls, Drawer, draw_call, dtype_of
from tests.numpy.chains import TAKEN, namespace

TABLES = {**ALL_TABLES, "": ARRAY}
DTYPES = ("bool", "int8", "uint32", "int32", "float16", "bfloat16", "float32", "complex64", "float8_e4m3fn")
NAMES = (*DTYPES, "int4", "object", "S3", "datetime64[s]", "float", "f4", "no dtype", "")


def names() -> list[tuple[str, str]]:
    """All functions, methods and operators that nearly right calls are drawn of."""
    return [(p, n) for p, table in TABLES.items() for n, entry in table.items() if isinstance(entry, Calls | list)]


@dataclass(frozen=True)
class NearMiss:
    """An expression with one thing changed, and the arrays it names."""

    text: str
    before: str
    then: str
    contents: dict[str, Any]

    def __str__(self) -> str:
        given = [
            f"{n}: {x.dtype}{list(x.shape)}" for n, x in self.contents.items() if re.search(rf"\b{n}\b", self.text)
        ]
        return "; ".join([*given, self.text + f"({self.then})" * bool(self.then)]) + f"    # was {self.before}"

    def run(self, package: Any, traced: bool) -> Any:
        """The result on ``mw`` or ``jax``; traced, it is that of ``eval_shape``."""

        def call(arrays: dict[str, Any]) -> Any:
            known = namespace(package) | {"p": package, "np": np} | arrays
            result = eval(self.text, known)
            if self.then and callable(result):
                result = eval(f"result({self.then})", known | {"result": result})
            return result

        arrays = {name: package.numpy.asarray(value) for name, value in self.contents.items()}
        if not traced:
            return call(arrays)
        return package.eval_shape(lambda arrays: [x for x in _leaves(call(arrays)) if hasattr(x, "dtype")], arrays)


def _leaves(x: Any) -> list[Any]:
    return jax.tree.leaves(x)


def draw_near_miss(seed: Any, prefix: str, name: str) -> NearMiss | None:
    """A call of a name with one thing changed; None if nothing can be."""
    entry, d = TABLES[prefix][name], Drawer(seed, fresh=1.0)
    drawn = draw_call(entry, d)
    if drawn is None:
        return None
    text, then = drawn
    before = f"{prefix}{name}({text})" if prefix else text
    tree = ast.parse(before, mode="eval")
    places = _Places(set(d.arguments))
    places.visit(tree)
    if not places.found:
        return None
    place = d.choose(places.found)
    contents = dict(d.arguments)
    after = ast.unparse(_Put(place, _changed(place, contents, d)).visit(tree))
    return NearMiss(after, before, then, contents)


class _Places(ast.NodeVisitor):
    """The parts of a call that may be changed: constants, tuples, lists and arrays outside of functions."""

    def __init__(self, arrays: set[str]) -> None:
        self.arrays, self.found = arrays, list[Any]()

    def visit_Lambda(self, node: ast.Lambda) -> None:
        pass

    def visit_Constant(self, node: ast.Constant) -> None:
        self.found.append(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.found += [node, node] * (node.id in self.arrays)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.operand, ast.Constant):
            self.found.append(node)
        else:
            self.generic_visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        if not any(isinstance(one, ast.Slice) for one in node.elts):
            self.found.append(node)
        self.generic_visit(node)

    def visit_List(self, node: ast.List) -> None:
        self.found.append(node)
        self.generic_visit(node)


class _Put(ast.NodeTransformer):
    def __init__(self, place: ast.AST, text: str) -> None:
        self.place, self.text = place, text

    def visit(self, node: ast.AST) -> Any:
        return ast.parse(self.text, mode="eval").body if node is self.place else super().visit(node)


def _changed(place: Any, contents: dict[str, Any], d: Drawer) -> str:
    """The text of what stands in a place instead."""
    if isinstance(place, ast.Name):
        name = f"b{len(contents)}"
        contents[name] = _other_array(contents[place.id], d)
        return name
    if isinstance(place, ast.Tuple | ast.List):
        return _other_tuple(ast.unparse(place), [ast.unparse(one) for one in place.elts], d)
    value = ast.literal_eval(place)
    if isinstance(value, str):
        words = NAMES if value in DTYPES else ("", value.upper(), value + "x", value[::-1], "no such word", *NAMES[:3])
        return repr(d.choose([word for word in words if word != value])) if d.flag(0.8) else d.choose(("None", "3"))
    if value is None or isinstance(value, bool) or value is ...:
        return str(d.choose(("None", "2", "-1", "'yes'", "0.5", "()", "(0, 0)", "(5,)", "np_.ones(2)", "...")))
    other = (value + 1, value - 1, -value - 1, value + 7, -value - 9)
    number = d.choose(other)
    kinds = (
        number,
        number,
        number,
        f"{value} + 0.5",
        "None",
        "'a'",
        f"({value}, {value})",
        f"np_.array({value} + 0.5)",
    )
    kinds += (f"np_.array({number})", f"np_.array([{value}])", "0", "1j", "True", "float('nan')", "()", f"[{number}]")
    return str(d.choose(kinds))


def _other_array(x: Any, d: Drawer) -> Any:
    """An array of another shape or dtype."""
    how = d.integer(0, 9)
    if how < 4:
        dtype = dtype_of(d.choose([name for name in DTYPES if dtype_of(name) != x.dtype]))
        with np.errstate(all="ignore"):
            return np.real(x).astype(dtype)
    shape = list(x.shape)
    if how < 6 and shape:
        at = d.integer(0, len(shape) - 1)
        shape[at] = d.choose([n for n in (0, 1, 2, 3, 5) if n != shape[at]])
    elif how < 8:
        shape.insert(d.integer(0, len(shape)), d.choose((1, 2)))
    elif shape:
        shape.pop(d.integer(0, len(shape) - 1))
    return np.resize(x, shape) if x.size else np.zeros(shape, x.dtype)


def _other_tuple(text: str, entries: list[str], d: Drawer) -> str:
    """A tuple or list with an entry more or less, one repeated, in another order, nested, or of other values."""
    open_, close = text[0], text[-1]
    how = d.integer(0, 7)
    some = list(entries)
    if how == 0 and some:
        some.pop(d.integer(0, len(some) - 1))
    elif how == 1 and some:
        some.insert(0, d.choose(some))
    elif how == 2 and len(some) > 1:
        some[0] = some[-1]
    elif how == 3:
        some.append(d.choose(("0", "1", "-1", "9", "None", "'a'", "0.5")))
    elif how == 4:
        some = [text]
    elif how == 5:
        return str(d.choose(("None", "0", "'ab'", "{0: 1}", "0.5", "range(2)", "()", "[]", "iter([0])")))
    elif how == 6:
        some = some[::-1]
    else:
        return f"np_.array({text})"
    return open_ + ", ".join(some) + ("," if open_ == "(" and len(some) == 1 else "") + close


# Errors of JAX about values that are not known while it traces.
UNKNOWN = (
    "ConcretizationTypeError", "NonConcreteBooleanIndexError", "TracerArrayConversionError", "UnexpectedTracerError",
    "TracerBoolConversionError", "TracerIntegerConversionError",
)  # fmt: skip

# What JAX refuses and we take, besides what is taken elsewhere, by the call and its message, and why.
MEANT = {
    r"np_\.array\(.*(Tracer|0-d array|unhashable|Slice entries must be static)": "a known array stays known in a trace",
    r"Cannot determine dtype of [\[(]|unsupported operand type\(s\) for .*'(list|tuple)'": "lists are arrays",
    r"expected ArrayLike, got [\[(]|can only concatenate (list|tuple)|non-tuple sequence for": "lists are arrays",
    r"'(list|tuple)' object has no attribute|'<class 'list'>' is not a valid": "lists are arrays",
    r"True.*(must be a scalar integer|got True|obj to delete|setting an array|be an integer type)": "True is 1",
    r"quantile.*floor does not accept dtype u?int": "0 and 1 are the smallest and the largest, as in NumPy",
    r"nan(median|percentile|quantile).*out of bounds for axis 0 with size 0": "the quantile of no numbers is NaN",
    r"array_equiv.*incompatible shapes": "arrays whose shapes do not broadcast are not equivalent, as in NumPy",
    r"signbit only supports|(frexp|ldexp).*: 8$": "floats of 8 bits are floats",
    r"pad_width with nd=0": "no pair at all is one for each of no dims",
    r"reduction axes \([^)]*-\d|got dimension=-\d|to be nonnegative and less": "an axis may be counted from the end",
    r"object of type 'int' has no len\(\)": "one number may stand for a tuple of one",
    r"Pred type must be .*, got (bfloat16|float8)": "narrow floats are numbers",
    r"triangular_solve does not accept dtype u?int": "integers become floats, as in all of linalg",
    r"nan.*the first argument to pow": "NaN is a complex number, too",
    r"(empty sequence|Too few leaves)": "there are no derivatives with respect to nothing",
    r"\.at\[.*out of bounds for axis 0 with size 0": "outside of an array nothing is written",
    r"make_mesh.*Number of devices": "a mesh needs no machine",
    r"ndim should be 4|too many values to unpack": "a batch may have several dims",
    r"out_shardings=\(\).*: $": "inside of another trace, where results go is said outside",
}


def outcome(call: NearMiss, traced: bool, against_jax: bool = True) -> str:
    """What is wrong with what Meshwright does, if anything."""
    try:
        with limited(20):
            call.run(mw, traced)
    except mw.MeshwrightError as error:
        return "" if error.why and error.fix else f"an error without a reason or a fix: {error}"
    except Exception as error:
        return "" if of_the_call(error) else f"raw {type(error).__name__}: {error}"
    if not against_jax or call.text.startswith("p.tree"):
        return ""
    try:
        with limited(60):
            call.run(jax, traced)
    except TimeoutError:
        return ""
    except Exception as error:
        text = f"{call.text}: {error}"
        known = (*TAKEN, *ACCEPTED, *MEANT)
        if type(error).__name__ in UNKNOWN or any(re.search(pattern, text, re.DOTALL) for pattern in known):
            return ""
        return f"accepted; JAX: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""
