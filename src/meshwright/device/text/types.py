"""Reading the small things of device programs: devices, numbers, literals, types and sizes."""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np

from meshwright.core.check import check
from meshwright.core.dtypes import SHORT_NAMES
from meshwright.core.text.parse import parse_program
from meshwright.device.dims import Dim, Size, divide
from meshwright.device.function import PRINTED, Number
from meshwright.device.text.tokens import Token, error_at, tokens
from meshwright.device.types import UNKNOWN, Device, Tensor, Tuple, Type
from meshwright.errors import TextError


class TypeReader:
    """Walks over tokens, and reads what has no names of values in it."""

    def __init__(self, text: str, strict: bool) -> None:
        if not isinstance(text, str):
            raise TextError(
                "dist.parse reads text.", why=f"it is given {type(text).__name__}", fix='dist.parse("def f(…): …")'
            )
        self.text = text
        self.strict = strict
        self.tokens = tokens(text)
        self.at = 0
        self.slips: list[str] = []
        self.aliases: dict[str, Device] = {}

    # Tokens

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def peek(self, offset: int = 1) -> str:
        return self.tokens[min(self.at + offset, len(self.tokens) - 1)].text

    def next(self) -> Token:
        token = self.token
        self.at += 1
        return token

    def fail(self, what: str, why: str = "", fix: str = "", at: int | None = None) -> TextError:
        return error_at(self.text, self.token.start if at is None else at, what, why, fix)

    def expect(self, text: str) -> Token:
        if self.token.text != text:
            found = repr(self.token.text) if self.token.kind != "end" else "the end"
            raise self.fail(f"{text!r} is expected here, not {found}.")
        return self.next()

    def accept(self, text: str) -> bool:
        if self.token.text == text and self.token.kind in ("mark", "name"):
            self.at += 1
            return True
        return False

    def name(self, what: str) -> str:
        if self.token.kind != "name":
            found = repr(self.token.text) if self.token.kind != "end" else "the end"
            raise self.fail(f"{what} is expected here, not {found}.")
        return self.next().text

    def slip(self, message: str, at: int, fix: str) -> None:
        if self.strict:
            raise self.fail(f"A slip: {message}.", "the text is read strictly", fix, at)
        line = self.text.count("\n", 0, at) + 1
        self.slips.append(f"line {line}: {message}; read as {fix}")

    # Types, devices and literals

    def integer(self) -> int:
        if self.token.kind != "number" or not self.token.text.isdigit():
            raise self.fail("A whole number is expected here.", fix="devices are numbers: 0, 1, 2, …")
        return int(self.next().text)

    def device(self) -> Device:
        """``0``, ``d``, ``d.1``, ``d.1.0``, ``d+1``, ``2+d``, ``?``."""
        if self.accept("?"):
            return UNKNOWN
        if self.token.kind == "number":
            number = self.integer()
            if self.token.text in ("+", "-"):
                sign = self.next().text
                at = self.token.start
                found = self.device()
                if sign == "-":
                    raise self.fail("A device is not taken from a number.", "d-1 is the device before d", "d-1", at)
                return found + number
            return Device(number)
        at = self.token.start
        name = self.name("a device")
        found = self.aliases.get(name, Device(name))
        while self.accept("."):
            digits = self.next().text
            if not re.fullmatch(r"\d+(\.\d+)?", digits):
                raise self.fail("A whole number is expected here.", f"d.1 is a device below {name}", f"{name}.1", at)
            for step in digits.split("."):
                found = found.child(int(step))
        while self.token.text in ("+", "-"):
            up = self.next().text == "+"
            number = self.integer()
            found = found + (number if up else -number)
        return found

    def number(self) -> Number:
        value = self.literal()
        if isinstance(value, Dim | tuple | str) or value is None:
            raise self.fail("An operand is the name of a value, or a number.", fix="mul(x, 2.0)")
        if self.accept(":"):
            at = self.token.start
            name = self.name("a dtype")
            if name not in SHORT_NAMES:
                raise self.fail(f"There is no dtype {name}.", f"the dtypes are {', '.join(SHORT_NAMES)}", "2.0:f32", at)
            return Number(value, SHORT_NAMES[name])
        return Number(value, {bool: np.dtype(bool), int: np.dtype("int32")}.get(type(value), np.dtype("float32")))

    def literal(self) -> Any:
        if self.accept("("):
            items = []
            while not self.accept(")"):
                items.append(self.literal())
                if self.token.text != ")":
                    self.expect(",")
            return tuple(items)
        if self.accept("["):
            found = []
            while not self.accept("]"):
                found.append(self.literal())
                if self.token.text != "]":
                    self.expect(",")
            return found
        if self.accept("-"):
            if self.token.kind != "number" and self.token.text not in ("inf", "nan"):
                raise self.fail(f"A number is expected after '-', not {self.token.text!r}.", fix="mul(x, -2.0)")
            return -self.literal()
        token = self.token
        if token.kind == "string":
            self.next()
            try:
                return ast.literal_eval(token.text)
            except (SyntaxError, ValueError) as error:
                raise self.fail(
                    "A string is not written as Python writes it.", str(error), "'text'", token.start
                ) from error
        if token.kind == "mark" and token.text == "@":
            return self.printed()
        if token.kind == "name":
            word = token.text
            if word in ("True", "False", "None", "inf", "nan"):
                self.next()
                return {"True": True, "False": False, "None": None, "inf": float("inf"), "nan": float("nan")}[word]
            if word in SHORT_NAMES:
                self.next()
                return SHORT_NAMES[word]
            if word == "complex" and self.peek() == "(":
                self.next()
                return self.complex_number()
            if word in ("program", "array") and self.peek() == "(":
                self.next()
                self.next()
                inside = self.literal()
                dtype = self.literal() if word == "array" and self.accept(",") else np.dtype("float32")
                self.expect(")")
                return check(parse_program(inside), "reading") if word == "program" else self.array(inside, dtype)
        if token.kind == "number" and not token.text.isdigit():
            self.next()
            return float(token.text)
        return self.size()

    def complex_number(self) -> complex:
        at = self.token.start
        found = self.literal()
        if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(x, int | float) for x in found):
            raise self.fail("A complex number has two parts.", f"it is {found}", "complex(1.0, 2.0)", at)
        return complex(*found)

    def printed(self) -> Any:
        """A large array, which the text names by its digest: one that a program of this process has."""
        at = self.token.start
        self.next()
        name = ""
        while self.token.kind in ("name", "number") and self.token.start == at + 1 + len(name):
            name += self.next().text
        found = PRINTED.get(name)
        if found is None:
            raise self.fail(
                "A large constant is known by its digest alone.",
                "the text keeps the contents of small arrays, and no program here has this one",
                "make the program again, or pass the array as an input",
                at,
            )
        return found

    def array(self, inside: Any, dtype: Any) -> Any:
        try:
            return np.asarray(inside, dtype)
        except (TypeError, ValueError) as error:
            raise self.fail(
                "An array is a list of numbers and a dtype.", str(error), "array([1.0, 2.0], f32)"
            ) from error

    # Types

    def type(self) -> Type:
        at = self.token.start
        name = self.name("a type")
        if name == "Tuple":
            self.expect("[")
            items: list[Type] = []
            more = False
            while not self.accept("]"):
                if self.token.text == "=":
                    self.slip("a bracket of a type is not closed", at, "Tuple[…]")
                    break
                if self.accept("..."):
                    more = True
                else:
                    items.append(self.type())
                if self.token.text not in ("]", "="):
                    self.expect(",")
            return Tuple(tuple(items), more)
        if name != "Tensor":
            raise self.fail(
                f"There is no type {name}.", "a type is Tensor[(B, F), 0] or Tuple[…]", "Tensor[(B, F), 0]", at
            )
        self.expect("[")
        dtype = np.dtype("float32")
        if self.token.kind == "name":
            word = self.next().text
            if word not in SHORT_NAMES:
                raise self.fail(
                    f"There is no dtype {word}.",
                    f"the dtypes are {', '.join(SHORT_NAMES)}",
                    "Tensor[f32, (B, F), 0]",
                    at,
                )
            dtype = SHORT_NAMES[word]
            self.expect(",")
        self.expect("(")
        shape: list[Size] = []
        while not self.accept(")"):
            shape.append(self.size())
            if self.token.text != ")":
                self.expect(",")
        device = self.device() if self.accept(",") else UNKNOWN
        self.expect("]")
        return Tensor(tuple(shape), device, dtype)

    def size(self) -> Size:
        """``B``, ``8``, ``B/2``, ``2*H``."""
        found = self.factor()
        while self.token.text in ("*", "/"):
            times = self.next().text == "*"
            at = self.token.start
            other = self.factor()
            if other == 0 and not times:
                raise self.fail("A size cannot be divided by 0.", "there would be no devices", "B/2", at)
            found = found * other if times else divide(found, other)
        return found

    def factor(self) -> Size:
        if self.token.kind == "name":
            return Dim.symbol(self.next().text)
        if self.token.kind == "number" and self.token.text.isdigit():
            return int(self.next().text)
        raise self.fail(
            f"A size is expected here, not {self.token.text!r}.",
            "a size is a number, a symbol, or a product or quotient of those",
            "Tensor[(B/2, 4), 0]",
        )
