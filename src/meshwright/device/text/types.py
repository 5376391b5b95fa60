"""Reading the small things of device programs: devices, numbers, literals, types and sizes."""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np

from meshwright.core.check import check
from meshwright.core.dtypes import BOOL, FLOAT32, INT32, SHORT_NAMES, DType
from meshwright.core.text.parse import parse_program
from meshwright.core.text.tokens import TextReader, following, read_list
from meshwright.device.dims import Dim, Size, divide
from meshwright.device.function import PRINTED, Number
from meshwright.device.types import UNKNOWN, Device, Tensor, Tuple, Type
from meshwright.errors import TextError

_TOKENS = re.compile(
    r"(?P<space>\s+)|(?P<comment>\#[^\n]*)|(?P<number>\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\d+)"
    r"|(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<word>[A-Za-z_]\w*)|(?P<digest>@\w*)|(?P<sign>\.\.\.|[-()\[\]{}:,=./*+?])"
)
_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None, "inf": float("inf"), "nan": float("nan")}
_WORDS |= SHORT_NAMES
DEEPEST = 100  # brackets within brackets; a nested pmap has two
LONGEST = 400  # digits of a number, characters of a name


class TypeReader(TextReader):
    """Walks over the tokens of a device program, and reads what has no names of values in it."""

    pattern = _TOKENS

    def __init__(self, text: str, strict: bool) -> None:
        if not isinstance(text, str):
            raise TextError(
                "dist.parse reads text.", why=f"it is given {type(text).__name__}", fix='dist.parse("def f(…): …")'
            )
        super().__init__(text, "a device program")
        self.tokens[-1] = ("end", "", len(text))
        self._check_limits()
        self.strict = strict
        self.slips: list[str] = []
        self.aliases: dict[str, Device] = {}

    def _check_limits(self) -> None:
        nested = 0
        for kind, text, at in self.tokens:
            if kind == "sign":
                nested = max(0, nested + (text in "([{") - (text in ")]}"))
            elif kind in ("number", "word") and len(text) > LONGEST:
                what = "A number has at most {} digits." if kind == "number" else "A name has at most {} characters."
                raise self.fail(what.format(LONGEST), f"this has {len(text)}", at=at)
            if nested > DEEPEST:
                raise self.fail("Brackets are nested too deep.", f"they may stand {DEEPEST} deep", at=at)

    # Errors

    def fail(self, what: str, why: str = "", fix: str = "", at: int | None = None) -> TextError:
        """The error that points at a place of the text: the next token, if none is given."""
        at = self.position if at is None else at
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line, column = self.text[start : end if end >= 0 else len(self.text)], at - start
        if len(line) > 160:
            line, column = line[max(0, column - 60) :][:120], min(60, column)
        return TextError(
            what,
            where=f"line {self._line(at)}\n{line}\n{' ' * column}^",
            why=why,
            fix=fix or "y: Tensor[(B, H), 0] = MatMul(x, w)",
        )

    def error_at(self, position: int, why: str) -> TextError:
        return self.fail(why, at=position)

    def strange(self, position: int) -> TextError:
        return self.fail(f"{self.text[position]!r} is not part of a device program.", at=position)

    def expected(self, what: str) -> TextError:
        found = repr(self.peek()) if self.kind != "end" else "the end"
        return self.fail(f"{what} is expected here, not {found}.")

    def slip(self, message: str, at: int, fix: str) -> None:
        if self.strict:
            raise self.fail(f"A slip: {message}.", "the text is read strictly", fix, at)
        self.slips.append(f"line {self._line(at)}: {message}; read as {fix}")

    def _line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def second(self) -> str:
        """The token after the next."""
        return following(self, 2)[-1]

    # Types, devices and literals

    def integer(self) -> int:
        if self.kind != "number" or not self.peek().isdigit():
            raise self.fail("A whole number is expected here.", fix="devices are numbers: 0, 1, 2, …")
        return int(self.take()[1])

    def device(self) -> Device:
        """``0``, ``d``, ``d.1``, ``d.1.0``, ``d+1``, ``2+d``, ``?``."""
        if self.accept("?"):
            return UNKNOWN
        if self.kind == "number":
            number = self.integer()
            if self.peek() in ("+", "-"):
                sign = self.take()[1]
                at = self.position
                found = self.device()
                if sign == "-":
                    raise self.fail("A device is not taken from a number.", "d-1 is the device before d", "d-1", at)
                return found + number
            return Device(number)
        at = self.position
        name = self.word("a device")
        found = self.aliases.get(name, Device(name))
        while self.accept("."):
            if not re.fullmatch(r"\d+(\.\d+)?", self.peek()):
                raise self.fail("A whole number is expected here.", f"d.1 is a device below {name}", f"{name}.1", at)
            for step in self.take()[1].split("."):
                found = found.child(int(step))
        while self.peek() in ("+", "-"):
            up = self.take()[1] == "+"
            number = self.integer()
            found = found + (number if up else -number)
        return found

    def number(self) -> Number:
        value = self.literal()
        if isinstance(value, Dim | tuple | str) or value is None:
            raise self.fail("An operand is the name of a value, or a number.", fix="mul(x, 2.0)")
        if self.accept(":"):
            return Number(value, self.dtype("2.0:f32", self.position))
        return Number(value, {bool: BOOL, int: INT32}.get(type(value), FLOAT32))

    def dtype(self, fix: str, at: int) -> DType:
        name = self.word("a dtype")
        if name not in SHORT_NAMES:
            raise self.fail(f"There is no dtype {name}.", f"the dtypes are {', '.join(SHORT_NAMES)}", fix, at)
        return SHORT_NAMES[name]

    def literal(self) -> Any:
        if self.accept("("):
            return tuple(read_list(self, ")", self.literal))
        if self.accept("["):
            return read_list(self, "]", self.literal)
        if self.accept("-"):
            if self.kind != "number" and self.peek() not in ("inf", "nan"):
                raise self.fail(f"A number is expected after '-', not {self.peek()!r}.", fix="mul(x, -2.0)")
            return -self.literal()
        kind, word, at = self.peek_full()
        if kind == "string":
            self.take()
            try:
                return ast.literal_eval(word)
            except (SyntaxError, ValueError) as error:
                raise self.fail("A string is not written as Python writes it.", str(error), "'text'", at) from error
        if kind == "digest":
            return self.printed()
        if word in _WORDS and kind == "word":
            self.take()
            return _WORDS[word]
        if word in ("complex", "program", "array") and self.second() == "(":
            self.take()
            self.take()
            return self.made(word, at, read_list(self, ")", self.literal))
        if kind == "number" and not word.isdigit():
            self.take()
            return float(word)
        return self.size()

    def made(self, kind: str, at: int, given: list[Any]) -> Any:
        """``complex(1.0, 2.0)``, ``array([1.0, 2.0], f32)`` or ``program('…')``."""
        if kind == "complex":
            if len(given) != 2 or not all(isinstance(x, int | float) for x in given):
                raise self.fail("A complex number has two parts.", f"it is {tuple(given)}", "complex(1.0, 2.0)", at)
            return complex(*given)
        if kind == "program":
            return check(parse_program(given[0] if len(given) == 1 else tuple(given)), "reading")  # type: ignore[arg-type]
        try:
            inside, dtype = (*given, FLOAT32) if len(given) == 1 else given
            return np.asarray(inside, dtype)
        except (TypeError, ValueError) as error:
            raise self.fail(
                "An array is a list of numbers and a dtype.", str(error), "array([1.0, 2.0], f32)"
            ) from error

    def printed(self) -> Any:
        """A large array, which the text names by its digest: one that a program of this process has."""
        at = self.position
        found = PRINTED.get(self.take()[1].removeprefix("@"))
        if found is None:
            raise self.fail(
                "A large constant is known by its digest alone.",
                "the text keeps the contents of small arrays, and no program here has this one",
                "make the program again, or pass the array as an input",
                at,
            )
        return found

    # Types

    def type(self) -> Type:
        at = self.position
        name = self.word("a type")
        if name == "Tuple":
            self.take("[")
            items: list[Type] = []
            more = False
            while not self.accept("]"):
                if self.peek() == "=":
                    self.slip("a bracket of a type is not closed", at, "Tuple[…]")
                    break
                if self.accept("..."):
                    more = True
                else:
                    items.append(self.type())
                if self.peek() not in ("]", "="):
                    self.take(",")
            return Tuple(tuple(items), more)
        if name != "Tensor":
            raise self.fail(
                f"There is no type {name}.", "a type is Tensor[(B, F), 0] or Tuple[…]", "Tensor[(B, F), 0]", at
            )
        self.take("[")
        dtype = FLOAT32
        if self.kind == "word":
            dtype = self.dtype("Tensor[f32, (B, F), 0]", at)
            self.take(",")
        self.take("(")
        shape = read_list(self, ")", self.size)
        device = self.device() if self.accept(",") else UNKNOWN
        self.take("]")
        return Tensor(tuple(shape), device, dtype)

    def size(self) -> Size:
        """``B``, ``8``, ``B/2``, ``2*H``."""
        found = self.factor()
        while self.peek() in ("*", "/"):
            times = self.take()[1] == "*"
            at = self.position
            other = self.factor()
            if other == 0 and not times:
                raise self.fail("A size cannot be divided by 0.", "there would be no devices", "B/2", at)
            found = found * other if times else divide(found, other)
        return found

    def factor(self) -> Size:
        if self.kind == "word":
            return Dim.symbol(self.take()[1])
        if self.kind == "number" and self.peek().isdigit():
            return int(self.take()[1])
        raise self.fail(
            f"A size is expected here, not {self.peek()!r}.",
            "a size is a number, a symbol, or a product or quotient of those",
            "Tensor[(B/2, 4), 0]",
        )
