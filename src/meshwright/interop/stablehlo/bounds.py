"""How large a module may be: what a parser's stack cannot hold, and calls that would be written out without end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from meshwright.core.files import MOST_BYTES
from meshwright.errors import MeshwrightError, TextError
from meshwright.sharding.text_sdy import pointing

MOST_NESTED = 128  # brackets inside of each other, before the parser's stack ends
MOST_CALLS = 64  # functions that call each other in a row
MOST_OPS = 1 << 20  # with calls written out where they stand

# What has signs in it that are no brackets: strings, comments, arrows, comparisons.
_OTHERS = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|//[^\n]*+|->|[<>]='
_SKIPPED = re.compile(_OTHERS, re.DOTALL)
_TOKENS = re.compile(rf"{_OTHERS}|[({{\[<]|[)}}\]>]", re.DOTALL)
_STEPS = np.zeros(256, np.int8)
_STEPS[[*b"({[<"]], _STEPS[[*b")}]>"]] = 1, -1


def check_text(text: str, file: str = "") -> None:
    """Raise if a module's text is too long, or has too many brackets inside of each other.

    >>> check_text("module { func.func @main() -> () { return } }")
    """
    if len(text) > MOST_BYTES:
        raise TextError(
            "The module is too large to be read.",
            where=file,
            why=f"it has {len(text) >> 20} MiB, and up to {MOST_BYTES >> 20} are read",
            fix="leave large constants out: pass them as arguments of the function",
        )
    steps = _STEPS[np.frombuffer(_SKIPPED.sub("", text).encode(errors="replace"), np.uint8)]
    depths = np.cumsum(steps[steps != 0], dtype=np.int32)
    if not depths.size or int((depths - np.minimum.accumulate(np.minimum(depths, 0))).max()) <= MOST_NESTED:
        return
    depth = 0
    for found in _TOKENS.finditer(text):
        depth = max(depth + int(_STEPS[ord(found[0])]), 0) if len(found[0]) == 1 else depth
        if depth > MOST_NESTED:
            why = f"up to {MOST_NESTED} brackets are read inside of each other, and here are more"
            raise too_deep(f"{why}:\n{pointing(text, found.start())}", file)


def too_deep(why: str, file: str = "") -> TextError:
    """The error for regions, types or attributes inside of too many others."""
    return TextError(
        "The module is nested too deeply to be read.",
        where=file,
        why=why,
        fix="func.func private @part(…), with a call where its body stood",
    )


def check_calls(main: str, own: Mapping[str, int], calls: Mapping[str, Sequence[str]]) -> None:
    """Raise if a function with its calls written out is too long, or calls in too long a row.

    ``own`` has the number of ops of each function, ``calls`` the functions it calls, as often as it does.
    """
    total: dict[str, int] = {}
    depth: dict[str, int] = {}
    waiting = [main]
    begun: set[str] = set()
    while waiting:
        name = waiting[-1]
        inner = [one for one in calls.get(name, ()) if one in own]
        todo = [one for one in inner if one not in total and one not in begun]
        if name not in begun and todo:
            begun.add(name)
            waiting += dict.fromkeys(todo)
            continue
        waiting.pop()
        if name in total:
            continue
        begun.add(name)
        total[name] = own[name] + sum(total.get(one, 0) for one in inner)  # what calls itself is refused elsewhere
        depth[name] = 1 + max((depth.get(one, 0) for one in inner), default=0)
        if total[name] > MOST_OPS:
            raise _too_long(f"@{name} then has more than {MOST_OPS} ops")
        if depth[name] > MOST_CALLS:
            raise _too_long(f"@{name} calls a function that calls another, and so on more than {MOST_CALLS} times")


def _too_long(why: str) -> MeshwrightError:
    return MeshwrightError(
        "The calls of the module cannot be written out where they stand.",
        why=why,
        fix="a stablehlo.while around one call, instead of many calls",
    )
