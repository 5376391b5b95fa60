"""The tokens of programs and types as text; every error points at a character."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from meshwright.core.program import Program
from meshwright.core.source import ReadSource, Source
from meshwright.errors import TextError

if TYPE_CHECKING:
    from meshwright.sharding.mesh import AbstractMesh

DEEPEST = 100  # regions and tuples inside each other; the reader and the printer call themselves for each
_SHOWN = 160  # characters of a line in an error
# What texts are of, and how these are written.
_FORMS = {
    "a program": "write equations as `c: f32[8,4] = add a b`, inside `program(a: f32[8,4], …) { … return c }`",
    "a type": "f32[8,4]",
    "a list of types": "f32[8,4] bf16[4]",
}
_TOKENS = re.compile(
    r"""(?P<space>[ \t]+)|(?P<newline>\n)|(?P<comment>\#[^\n]*)
      |(?P<number>[-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\d+|(?:inf|nan)(?=j?\b))j?)
      |(?P<string>'[^'\\\n]*(?:\\.[^'\\\n]*)*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*")
      |(?P<word>[A-Za-z_][A-Za-z_0-9]*)
      |(?P<digest>(?<![0-9])@[0-9a-f]+)
      |(?P<sign>[-=:,.(){}\[\]~+@])""",
    re.VERBOSE | re.ASCII,
)
_SOURCE = re.compile(r"#\s*(\S.{0,254}):([0-9]{1,9})( again)?\s*")
# The escapes that ``repr`` writes; Python warns about some others.
_STRING = re.compile(
    r"""(['"])(?:[^\\]|\\(?:[\\'"nrt]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U(?:000[0-9a-fA-F]|0010)[0-9a-fA-F]{4}))*\1"""
)


def brief(text: str) -> str:
    """A token as an error shows it."""
    return text if len(text) <= 60 else f"{text[:40]}…{text[-10:]}"


class TextReader:
    """Tokens of a text with one token of lookahead; every error points at a character.

    Another notation has a ``pattern`` of its own: groups named space, newline, comment, number, string, word and sign.
    """

    pattern = _TOKENS

    def __init__(self, text: str, what: str) -> None:
        if not isinstance(text, str):
            raise _not_text(text, what)
        self.text, self.what = text, what
        self.depth = 0
        self.tokens: list[tuple[str, str, int]] = []
        self.next = 0
        position = 0
        while position < len(text):
            match = self.pattern.match(text, position)
            if match is None:
                raise self.strange(position)
            if match.lastgroup not in ("space", "newline"):
                self.tokens.append((match.lastgroup or "", match.group(), position))
            position = match.end()
        self.tokens.append(("end", "the end of the text", len(text)))
        self.meshes: list[AbstractMesh] = []

    def strange(self, position: int) -> TextError:
        """The error for a character that begins no token."""
        return self.error_at(position, f"the character {self.text[position]!r} means nothing here")

    def error_at(self, position: int, why: str) -> TextError:
        before = self.text[:position]
        line = before.count("\n")
        column = position - (before.rfind("\n") + 1)
        shown = self.text.split("\n")[line] if self.text else ""
        if len(shown) > _SHOWN:
            first = max(0, min(column - _SHOWN // 2, len(shown) - _SHOWN))
            rest = "…" if first + _SHOWN < len(shown) else ""
            shown = ("…" if first else "") + shown[first : first + _SHOWN] + rest
            caret = column - first + (1 if first else 0)
        else:
            caret = column
        return TextError(
            f"This is not {self.what}: line {line + 1}, column {column + 1}.",
            where=f"{shown}\n{' ' * caret}^",
            why=why,
            fix=_FORMS[self.what],
        )

    def error(self, why: str) -> TextError:
        return self.error_at(self.peek_full()[2], why)

    def expected(self, what: str) -> TextError:
        """The error for what comes next not being ``what``."""
        kind, text, position = self.peek_full()
        return self.error_at(position, f"expected {what}, found {text if kind == 'end' else repr(brief(text))}")

    def peek_full(self) -> tuple[str, str, int]:
        index = self.next
        while self.tokens[index][0] == "comment":
            index += 1
        return self.tokens[index]

    def peek(self) -> str:
        return self.peek_full()[1]

    @property
    def kind(self) -> str:
        """The kind of the next token."""
        return self.peek_full()[0]

    @property
    def position(self) -> int:
        """Where the next token starts."""
        return self.peek_full()[2]

    def take(self, expected: str | None = None) -> tuple[str, str]:
        while self.tokens[self.next][0] == "comment":
            self.next += 1
        kind, text, _ = self.tokens[self.next]
        if expected is not None and text != expected:
            raise self.expected(repr(expected))
        if kind == "end":
            raise self.expected("more")
        self.next += 1
        return kind, text

    def accept(self, text: str) -> bool:
        if self.peek_full()[0] != "end" and self.peek() == text:
            self.take()
            return True
        return False

    def word(self, what: str) -> str:
        kind, text, _ = self.peek_full()
        if kind != "word":
            raise self.expected(what)
        self.take()
        return text

    def trailing_source(self) -> Source | None:
        """The source written as a comment right after what was just read."""
        kind, text, _ = self.tokens[self.next]
        match = _SOURCE.fullmatch(text) if kind == "comment" else None
        source = ReadSource(match[1], int(match[2])) if match else None
        return source.second() if source and match and match[3] else source

    def finish(self) -> None:
        """Raise if there is more."""
        if self.peek_full()[0] != "end":
            raise self.expected("the end of the text")

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Around what is inside something else: the text may nest ``DEEPEST`` levels."""
        if self.depth == DEEPEST:
            raise self.error(f"regions and tuples nest more than {DEEPEST} deep")
        self.depth += 1
        yield
        self.depth -= 1


def _not_text(given: object, what: str) -> TextError:
    if isinstance(given, Program):
        fix = "str(program)"
    elif isinstance(given, bytes | bytearray):
        fix = "text.decode()"
    else:
        fix = "'program(a: f32[3]) { b: f32[3] = neg a  return b }'" if what == "a program" else "'f32[8,4]'"
    article = "an" if type(given).__name__[0] in "aeiouAEIOU" else "a"
    return TextError(
        f"This is not {what}.", why=f"it is read from a str, not from {article} {type(given).__name__}", fix=fix
    )


def following(reader: TextReader, count: int) -> list[str]:
    """The next ``count`` tokens, comments left out."""
    found: list[str] = []
    index = reader.next
    while len(found) < count and index < len(reader.tokens):
        if reader.tokens[index][0] != "comment":
            found.append(reader.tokens[index][1])
        index += 1
    return found


def read_list(reader: TextReader, end: str, item: Callable[[], Any]) -> list[Any]:
    items = []
    while not reader.accept(end):
        items.append(item())
        if reader.peek() != end:
            reader.take(",")
    return items


def read_string(reader: TextReader) -> str:
    kind, text, _ = reader.peek_full()
    if kind != "string":
        raise reader.expected("a string")
    try:
        if _STRING.fullmatch(text) is None:
            raise ValueError
        value: str = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        raise reader.error(f"{brief(text)} is not a string") from None
    reader.take()
    return value
