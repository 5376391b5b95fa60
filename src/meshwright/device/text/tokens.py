"""The tokens of a device program's text, and errors that point at them."""

from __future__ import annotations

import re
from typing import NamedTuple

from meshwright.errors import TextError

_TOKEN = re.compile(
    r"(?P<skip>\s+|\#[^\n]*)|(?P<number>\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\d+)|(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<mark>\.\.\.|[-()\[\]{}:,=./*+?@])"
)


DEEPEST = 100  # brackets within brackets; a nested pmap has two
LONGEST = 400  # digits of a number, characters of a name


class Token(NamedTuple):
    """A piece of text: its kind, and where it starts."""

    kind: str
    text: str
    start: int


def tokens(text: str) -> list[Token]:
    """The text as tokens, the last of them its end; comments and spaces are left out."""
    found = []
    at = depth = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise error_at(text, at, f"{text[at]!r} is not part of a device program.")
        if match.lastgroup != "skip":
            found.append(Token(str(match.lastgroup), match.group(), at))
        if match.lastgroup == "mark":
            depth = max(0, depth + (match.group() in "([{") - (match.group() in ")]}"))
        elif match.lastgroup == "number" and len(match.group()) > LONGEST:
            raise error_at(text, at, f"A number has at most {LONGEST} digits.", f"this has {len(match.group())}")
        elif match.lastgroup == "name" and len(match.group()) > LONGEST:
            raise error_at(text, at, f"A name has at most {LONGEST} characters.", f"this has {len(match.group())}")
        if depth > DEEPEST:
            raise error_at(text, at, "Brackets are nested too deep.", f"they may stand {DEEPEST} deep")
        at = match.end()
    return [*found, Token("end", "", len(text))]


def error_at(text: str, at: int, what: str, why: str = "", fix: str = "") -> TextError:
    """The error that points at a place of the text."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[start : end if end >= 0 else len(text)]
    number = text.count("\n", 0, at) + 1
    shown, column = (
        (line, at - start) if len(line) <= 160 else (line[max(0, at - start - 60) :][:120], min(60, at - start))
    )
    return TextError(
        what,
        where=f"line {number}\n{shown}\n{' ' * column}^",
        why=why,
        fix=fix or "y: Tensor[(B, H), 0] = MatMul(x, w)",
    )
