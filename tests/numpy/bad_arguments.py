"""Calls with one argument that makes no sense, and what may come out: an error of ours, or what JAX allows, too."""

from __future__ import annotations

import inspect
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import meshwright as mw
from tests.numpy.calls.drawing import Calls, Drawer, draw_call
from tests.numpy.calls.package_calls import PACKAGE, RANDOM, TREE
from tests.numpy.chains import TABLES, TAKEN, namespace

HUGE = "huge"  # values that JAX is not given: it ends the process, or fills the memory

# What an argument is replaced by, as text, and whether only Meshwright is given it.
BAD: tuple[tuple[str, str], ...] = (
    ("None", ""), ("'text'", ""), ("object()", ""), ("2.5", ""), ("-1", ""), ("-7", ""), ("99", ""), ("()", ""),
    ("[]", ""), ("[None]", ""), ("{'a': 1}", ""), ("(lambda: 0)", ""), ("float('nan')", ""), ("float('inf')", ""),
    ("1j", ""), ("True", ""), ("int", ""), ("slice(None)", ""), ("b'x'", ""), ("{1, 2}", ""), ("...", ""),
    ("(1, 2, 3, 4)", ""), ("(None, 2)", ""), ("('a', 'b')", ""), ("[[1], [2, 3]]", ""), ("np.array('a')", ""),
    ("np.array([1.5, 2.5])", ""), ("np_.ones((7, 5))", ""), ("np_.array([1, 2, 3], 'int8')", ""),
    ("np_.zeros((0, 3))", ""), ("np_.array(True)", ""), ("np_.array(1j)", ""), ("np_.array([0.5])", ""),
    ("10**15", HUGE), ("-(10**15)", HUGE), ("(10**12, 10**12)", HUGE), ("(10**6, 10**7)", HUGE), ("10**400", HUGE),
    ("1e308", HUGE), ("(1,) * 70", HUGE),
)  # fmt: skip

ALL_TABLES: dict[str, dict[str, Any]] = {
    **{prefix: table for prefix, (table, _) in TABLES.items() if prefix},
    "p.": PACKAGE,
    "p.random.": RANDOM,
    "p.tree.": TREE,
}


def names() -> list[tuple[str, str]]:
    """All functions that are given bad arguments, by table and name."""
    return [(prefix, name) for prefix, table in ALL_TABLES.items() for name, entry in table.items() if _calls(entry)]


def _calls(entry: Any) -> bool:
    return isinstance(entry, Calls | list)


@dataclass(frozen=True)
class BadCall:
    """A call as text: the function, its arguments with a bad one among them, and how its result is called."""

    function: str
    arguments: tuple[str, ...]
    then: str
    huge: bool
    contents: dict[str, Any]

    def __str__(self) -> str:
        given = [f"{name} = np.{value!r}" for name, value in self.contents.items() if name in " ".join(self.arguments)]
        return "; ".join([*given, f"{self.function}({', '.join(self.arguments)}){f'({self.then})' * bool(self.then)}"])

    def run(self, package: Any) -> Any:
        """The result on ``mw`` or ``jax``, of arrays of theirs."""
        known = namespace(package) | {"p": package, "np": np}
        known |= {name: package.numpy.asarray(value) for name, value in self.contents.items()}
        result = eval(f"{self.function}({', '.join(self.arguments)})", known)
        if self.then and callable(result):
            result = eval(f"result({self.then})", known | {"result": result})
        return result


def draw_bad_call(seed: Any, prefix: str, name: str) -> BadCall | None:
    """A call of a name with one argument replaced; None if none can be drawn."""
    entry, d = ALL_TABLES[prefix][name], Drawer(seed, fresh=1.0)
    drawn = draw_call(entry, d)
    if drawn is None:
        return None
    text, then = drawn
    arguments = split_arguments(text)
    bad, why = d.choose(BAD)
    if not arguments or d.flag(0.15):  # an argument that was not given
        added = _another(prefix, name, arguments, d)
        if added is None or (added == "is_leaf" and bad == "int"):
            return None
        arguments.append(f"{added}={bad}")
    else:
        place = d.integer(0, len(arguments) - 1)
        keyword, equals, _ = arguments[place].partition("=")
        is_keyword = bool(equals) and keyword.strip().isidentifier()
        if re.search(r"lambda|^(np_|lax)\.\w+$", arguments[place]) and bad in ("int", "(lambda: 0)"):
            return None  # a function that fails by itself
        arguments[place] = f"{keyword.strip()}={bad}" if is_keyword else bad
    return BadCall(prefix + name, tuple(arguments), then, why == HUGE, dict(d.arguments))


def _another(prefix: str, name: str, arguments: list[str], d: Drawer) -> str | None:
    """The name of a parameter that a call does not give."""
    function: Any = mw
    for part in (prefix.replace("np_", "p.numpy").replace("lax", "p.lax").replace("nn", "p.nn") + name).split("."):
        function = function if part == "p" else getattr(function, part)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    given = {a.partition("=")[0].strip() for a in arguments}
    positional = sum(1 for a in arguments if not a.partition("=")[0].strip().isidentifier() or "=" not in a)
    rest = [p for n, p in enumerate(parameters) if n >= positional and p.name not in given]
    rest = [p for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return d.choose(rest).name if rest else None


def split_arguments(text: str) -> list[str]:
    """The arguments of a call's text: cut at commas outside of brackets and of a lambda's parameters."""
    found, depth, start, in_lambda, in_text = [], 0, 0, False, False
    for n, c in enumerate(text):
        if c == "'":
            in_text = not in_text
        if in_text:
            continue
        if text.startswith("lambda", n) and depth == 0:
            in_lambda = True
        elif c == ":" and depth == 0:
            in_lambda = False
        depth += c in "([{"
        depth -= c in ")]}"
        if c == "," and depth == 0 and not in_lambda:
            found.append(text[start:n].strip())
            start = n + 1
    last = text[start:].strip()
    return [*found, last] if last else found


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Stop what takes longer."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# What JAX refuses and we take besides, by its message, and why.
ACCEPTED = {
    r"requires ndarray or scalar arguments, got": "lists and tuples of numbers are arrays, as in NumPy",
    r"Error interpreting argument to .* as a JAX value": "lists and tuples of numbers are arrays, as in NumPy",
    r"Non-hashable static arguments|unhashable type: 'jaxlib": "a known array of one number is a number",
    r"does not accept dtype int32 at position": "a number that an array's dtype has is taken in that dtype",
    r"select cases must have the same shapes": "a scalar may stand beside an array",
    r"'int' object is not iterable": "one number may stand for a tuple of one",
    r"must be 1D, got shapes": "a number is a vector of one",
    r"'bool' object is not iterable|offset must be an integer, got Array\(True": "True is 1, as in Python",
    r"Invalid axis -\d|do not allow negative axes": "an axis may be counted from the end",
    r"Operands must have the same tree structure as init_values": "lists of numbers are arrays",
    r"unsupported operand type\(s\) for ==: 'ArrayImpl'": "a known array of sizes is a shape",
    r"Cannot determine dtype of \(\)": "an empty list is an array",
    r"may_alias specification": "without effect here",
    r"Sizes passed to split must be nonnegative": "places beyond the end cut off nothing, as in NumPy",
}


def outcome(call: BadCall, against_jax: bool) -> str:
    """What is wrong with what Meshwright does, if anything."""
    try:
        with limited(20):
            call.run(mw)
    except mw.MeshwrightError as error:
        return "" if error.why and error.fix else f"an error without a reason or a fix: {error}"
    except Exception as error:
        return "" if of_the_call(error) else f"raw {type(error).__name__}: {error}"
    if not against_jax or call.huge or call.function.startswith("p.tree"):
        return ""
    try:
        with limited(60):
            call.run(jax)
    except TimeoutError:
        return ""
    except Exception as error:
        text = str(error)
        if any(re.search(pattern, text) for pattern in (*TAKEN, *ACCEPTED)):
            return ""
        return f"accepted; JAX: {type(error).__name__}: {text.splitlines()[0] if text else ''}"
    return ""


def of_the_call(error: Exception) -> bool:
    """Whether an error is Python's own, about a call that does not fit a signature, or of a function of the user's."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is not None and last.tb_frame.f_code.co_filename == "<string>":
        return True
    if not isinstance(error, TypeError):
        return False
    text = str(error)
    return any(
        words in text
        for words in (
            "unexpected keyword argument",
            "required positional argument",
            "positional argument",
            "multiple values",
        )
    )
