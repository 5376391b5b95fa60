"""Passes with their options as they are written: ``sdy-x``, ``sdy-x{a=true b=c}``, ``sdy-x=a=true b=c``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from meshwright.errors import TextError

_PASS = re.compile(r"([\w-]+)(?:=(.*)|\{(.*)\})?", re.DOTALL)
_OPTION = re.compile(r"([\w-]+)(?:=(\{[^}]*\}|[^\s{}]*))?\s*")


class PassCall(NamedTuple):
    """A pass and the options that were given to it, by name."""

    name: str
    options: Mapping[str, str] = {}

    def flag(self, option: str, default: bool = False) -> bool:
        """Whether an option is on; one that is written without a value is."""
        return self.options.get(option, str(default).lower()) in ("true", "")

    def __str__(self) -> str:
        written = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name}{{{written}}}" if written else self.name


def parse_pass(text: str) -> PassCall:
    """A pass as ``sdy_opt`` or a textual pipeline writes it.

    >>> parse_pass("sdy-basic-propagate{keep-sharding-rules=true}")
    PassCall(name='sdy-basic-propagate', options={'keep-sharding-rules': 'true'})
    >>> parse_pass("sdy-insert-explicit-reshards=enable-full-version") == parse_pass(
    ...     "sdy-insert-explicit-reshards{enable-full-version=}")
    True
    """
    found = _PASS.fullmatch(text.strip())
    if found is None:
        raise TextError(f"This is no pass: {text}", fix="sdy-basic-propagate{keep-sharding-rules=true}")
    written = (found[2] or found[3] or "").strip()
    options: dict[str, str] = {}
    at = 0
    while at < len(written):
        option = _OPTION.match(written, at)
        if option is None:
            raise TextError(f"These are no options of a pass: {written}", fix="keep-sharding-rules=true")
        options[option[1]] = option[2] or ""
        at = option.end()
    return PassCall(found[1], options)
