"""Chips: their numbers, each with a unit in its name and a source, read from one data file when first asked for."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from meshwright.core.files import read_text
from meshwright.core.source import here
from meshwright.errors import HardwareError


@dataclass(frozen=True)
class Fact:
    """A number (or a shape, or a name), where it comes from, and what other sources say."""

    value: Any
    source: tuple[str, ...]
    note: str = ""
    other: tuple[Fact, ...] = ()

    def preferring(self, source: str) -> Fact:
        """The same fact with the value of ``source`` first, if that source has one.

        >>> get("tpu v5e").fact("hbm_bytes_per_s").preferring("cloud docs").value
        819000000000.0
        """
        every = (self, *self.other)
        for fact in every:
            if any(label.split(":")[0] == source or label == source for label in fact.source):
                rest = tuple(Fact(f.value, f.source, f.note) for f in every if f is not fact)
                return Fact(fact.value, fact.source, fact.note, rest)
        return self


@dataclass(frozen=True)
class Chip:
    """One accelerator; every number of its data is an attribute.

    >>> chip = get("tpu v5e")
    >>> chip.hbm_bytes_per_s, chip.link_bytes_per_s
    (810000000000.0, 45000000000.0)
    >>> chip.replace(hbm_bytes_per_s=8.2e11).intensity("bf16")
    240.2439024390244
    """

    name: str
    kind: str
    facts: Mapping[str, Fact]

    def __getattr__(self, name: str) -> float:
        if name.startswith("_") or name in ("facts", "name", "kind"):
            raise AttributeError(name)
        if name not in self.facts or self.facts[name].value is None:
            if name not in known_numbers():
                raise AttributeError(f"a chip has no number {name!r}{_nearest(name, known_numbers())}")
            raise HardwareError(
                f"The data of {self.name} has no {name}.",
                where=here(),
                why="its source says so" if name in self.facts else "none of the sources at hand gives it",
                fix=f"hardware.get({self.name!r}, {name}=…)",
            )
        value: float = self.facts[name].value
        return value

    def __hash__(self) -> int:
        return hash((self.name, self.kind))

    def __repr__(self) -> str:
        return f"Chip({self.name!r})"

    def fact(self, name: str) -> Fact:
        """A number with its source.

        >>> get("h100").fact("bf16_flops_per_s").source
        ('klockwood: h100',)
        >>> get("h100").fact("bf16_flops_per_s").other[0].value
        990000000000000.0
        """
        getattr(self, name)
        return self.facts[name]

    def known(self, name: str, default: float) -> float:
        """A number, or ``default`` where the data has none."""
        return self.facts[name].value if name in self.facts else default

    def replace(self, **numbers: Any) -> Chip:
        """The same chip with other numbers.

        >>> get("h100").replace(nvlink_bytes_per_s=3e11).nvlink_bytes_per_s
        300000000000.0
        """
        for name in numbers:
            if name not in known_numbers():
                raise HardwareError(
                    f"A chip has no number {name!r}.",
                    where=here(),
                    why="numbers are named with their unit, e.g. hbm_bytes_per_s",
                    fix=_nearest(name, known_numbers()).removeprefix("; did you mean ").removesuffix("?")
                    or "see meshwright/hardware/chips.json",
                )
        given = {name: Fact(value, ("given",)) for name, value in numbers.items()}
        return Chip(self.name, self.kind, {**self.facts, **given})

    def flops_per_s(self, dtype: object = "bf16") -> float:
        """Peak dense rate of matmuls in ``dtype``.

        A rate the sources do not give follows from the unit that would do the work: f16 from bf16; f32 from tf32 on
        GPUs (else half of bf16) and from bf16 on TPUs, as at default precision; int4 and fp4 from the 8-bit rates;
        8-bit floats from bf16.

        >>> get("tpu v5e").flops_per_s("int8")
        394000000000000.0
        """
        name = dtype_name(dtype)
        for candidate, share in ((name, 1.0), *_STAND_INS[self.kind].get(name, ())):
            fact = self.facts.get(f"{candidate}_flops_per_s")
            if fact is not None and fact.value is not None:
                rate: float = fact.value * share
                return rate
        rates = ", ".join(n.removesuffix("_flops_per_s") for n, f in self.facts.items() if "_flops_" in n and f.value)
        raise HardwareError(
            f"{self.name} has no rate for {name}.",
            where=here(),
            why=f"the sources give {rates}",
            fix=f"hardware.get({self.name!r}, {name}_flops_per_s=…)" if name in _ITEM_BYTES else "dtype='bf16'",
        )

    def intensity(self, dtype: object = "bf16", memory: str = "hbm") -> float:
        """FLOPs per byte at which compute and ``memory`` ("hbm", "vmem", "pcie", "dcn") take equally long.

        >>> round(get("h100").intensity("bf16"))
        295
        """
        return self.flops_per_s(dtype) / self.memory_bytes_per_s(memory)

    def memory_bytes_per_s(self, memory: str = "hbm") -> float:
        """Bandwidth of one of the chip's memories or of its way to one."""
        if memory not in ("hbm", "vmem", "pcie", "dcn"):
            raise HardwareError(
                f"There is no memory {memory!r}.", where=here(), why="it is hbm, vmem, pcie or dcn", fix="memory='hbm'"
            )
        rate: float = getattr(self, f"{memory}_bytes_per_s")
        return rate

    def axis_bytes_per_s(self, axes: int = 1) -> float:
        """Bandwidth into a chip over ``axes`` wrapped axes, both ways round; a GPU has one axis, its NVLink.

        >>> get("tpu v5p").axis_bytes_per_s(3)
        540000000000.0
        """
        return 2 * axes * self.link_bytes_per_s if self.kind == "tpu" else self.nvlink_bytes_per_s

    def link_intensity(self, dtype: object = "bf16", axes: int = 1) -> float:
        """FLOPs per byte moved over ``axes`` wrapped axes: the α of the scaling book.

        >>> get("tpu v5p").link_intensity()
        2550.0
        """
        return self.flops_per_s(dtype) / self.axis_bytes_per_s(axes)


_ITEM_BYTES: dict[str, float] = {
    "bf16": 2, "f16": 2, "f32": 4, "tf32": 4, "f64": 8, "fp8": 1, "fp4": 0.5, "int4": 0.5, "int8": 1, "int16": 2,
    "int32": 4, "int64": 8, "bool": 1,
}  # fmt: skip

_NAMES = {
    "bfloat16": "bf16", "float16": "f16", "fp16": "f16", "half": "f16", "float32": "f32", "fp32": "f32", "float": "f32",
    "float64": "f64", "fp64": "f64", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "f8e4m3fn": "fp8", "f8e5m2": "fp8",
    "float8": "fp8", "f8": "fp8", "float4_e2m1fn": "fp4", "i8": "int8", "u8": "int8", "uint8": "int8", "i4": "int4",
    "uint4": "int4", "i16": "int16", "u16": "int16", "uint16": "int16", "i32": "int32", "u32": "int32",
    "uint32": "int32", "i64": "int64", "u64": "int64", "uint64": "int64",
}  # fmt: skip

_STAND_INS: dict[str, dict[str, tuple[tuple[str, float], ...]]] = {
    "tpu": {
        "f16": (("bf16", 1.0),),
        "f32": (("bf16", 1.0),),
        "tf32": (("bf16", 1.0),),
        "fp8": (("bf16", 1.0),),
        "int4": (("int8", 1.0),),
        "fp4": (("fp8", 1.0), ("bf16", 1.0)),
    },
    "gpu": {
        "f16": (("bf16", 1.0),),
        "f32": (("tf32", 1.0), ("bf16", 0.5)),
        "tf32": (("bf16", 0.5),),
        "fp8": (("int8", 1.0), ("bf16", 1.0)),
        "int8": (("fp8", 1.0),),
        "int4": (("int8", 1.0), ("fp8", 1.0)),
        "fp4": (("fp8", 1.0), ("bf16", 1.0)),
    },
    "cpu": {},
}


def dtype_name(dtype: object) -> str:
    """The short name of an element type, from text, a NumPy dtype or a scalar type.

    >>> import numpy as np
    >>> dtype_name("bfloat16"), dtype_name(np.dtype("float32")), dtype_name(np.int8)
    ('bf16', 'f32', 'int8')
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype))
    name = str(name).lower()
    name = _NAMES.get(name, name)
    if name not in _ITEM_BYTES:
        raise HardwareError(
            f"No element type is called {name!r}.",
            where=here(),
            why=f"there are {', '.join(_ITEM_BYTES)}",
            fix="dtype='bf16'",
        )
    return name


def item_bytes(dtype: object) -> float:
    """Bytes of one element.

    >>> item_bytes("bf16"), item_bytes("int4")
    (2, 0.5)
    """
    return _ITEM_BYTES[dtype_name(dtype)]


@cache
def data() -> dict[str, Any]:
    """The data file: ``sources``, ``chips``, ``nccl``."""
    loaded: dict[str, Any] = json.loads(files("meshwright.hardware").joinpath("chips.json").read_text(encoding="utf-8"))
    return loaded


def _fact(entry: Mapping[str, Any]) -> Fact:
    value = tuple(entry["value"]) if isinstance(entry["value"], list) else entry["value"]
    return Fact(value, tuple(entry["source"]), entry.get("note", ""), tuple(map(_fact, entry.get("other", ()))))


def _facts(numbers: Mapping[str, Any]) -> dict[str, Fact]:
    return {key: _fact(number) for key, number in numbers.items()}


@cache
def _chips() -> dict[str, Chip]:
    """The chips of the data file, with what was measured on one of them where that is kept beside it."""
    out = {}
    for name, entry in data()["chips"].items():
        measured = files("meshwright.hardware").joinpath(f"measured_{name.replace(' ', '_')}.json")
        found = json.loads(measured.read_text(encoding="utf-8"))["numbers"] if measured.is_file() else {}
        numbers = entry["numbers"] | {key: number for key, number in found.items() if key not in entry["numbers"]}
        out[name] = Chip(name, entry["kind"], _facts(numbers))
    return out


@cache
def _aliases() -> dict[str, str]:
    names = {name: name for name in data()["chips"]}
    for name, entry in data()["chips"].items():
        names.update(dict.fromkeys((entry["title"].lower(), *entry["aliases"]), name))
    return {_plain(alias): name for alias, name in names.items()}


@cache
def known_numbers() -> frozenset[str]:
    """Every number any chip has."""
    rates = {f"{dtype}_flops_per_s" for dtype in _ITEM_BYTES}
    return frozenset(rates.union(*(chip.facts for chip in _chips().values()), _CALIBRATED))


# What a measurement of a machine adds; 1.0 or 0.0 where there is none.
_CALIBRATED = (
    "matmul_efficiency",
    "hbm_efficiency",
    "link_efficiency",
    "net_efficiency",
    "launch_seconds",
    "half_bandwidth_bytes",
    "half_bandwidth_measured_bytes",
    "kernels",
)


def _plain(name: str) -> str:
    return " ".join(name.lower().replace("-", " ").replace("_", " ").split())


def _nearest(name: str, names: frozenset[str] | set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def names() -> tuple[str, ...]:
    """The chips there are data for.

    >>> names()  # doctest: +NORMALIZE_WHITESPACE
    ('tpu v2', 'tpu v3', 'tpu v4', 'tpu v5e', 'tpu v5p', 'tpu v6e', 'tpu 7x', 'a100', 'h100', 'h200', 'b200', 'gb200')
    """
    return tuple(_chips())


MOST = 1e30  # of any number in a file: products of several are still floats


def is_number(value: object, least: float = 0.0) -> bool:
    """Whether a value of a file is a number from ``least`` that arithmetic can do with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value < MOST


def _is_value(name: str, value: object) -> bool:
    """Whether this can be a number (or a shape, or a name) of a chip."""
    if name == "kernels":
        return isinstance(value, dict)
    if name == "slice_shapes":
        return isinstance(value, tuple) and all(re.fullmatch("[1-9][0-9]*(x[1-9][0-9]*)*", str(n)) for n in value)
    if isinstance(value, tuple):
        return name.endswith("_shape") and bool(value) and all(isinstance(n, int) and is_number(n, 1) for n in value)
    if isinstance(value, str):
        return name in ("mxu", "switch")
    return value is None or (is_number(value) and value != 0)


def brief(value: object) -> str:
    """A value of a file, for a message."""
    text = str(value)
    return text if len(text) <= 40 else text[:40] + "…"


def read_chip(path: str | os.PathLike[str]) -> Chip:
    """The chip in a file that ``meshwright calibrate`` wrote."""
    try:
        read = json.loads(read_text(path))
        why = ""
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, RecursionError) as error:
        why = f"it is not JSON: {error}"
    else:
        try:
            if read["kind"] not in _STAND_INS:
                raise ValueError
            chip = Chip(str(read["name"]), read["kind"], _facts(read["numbers"]))
            wrong = [name for name, fact in chip.facts.items() if not _is_value(name, fact.value)]
            if not wrong:
                return chip
            why = f"its {wrong[0]} is {brief(chip.facts[wrong[0]].value)}"
        except (TypeError, KeyError, ValueError, AttributeError):
            why = f"it has no name, kind ({', '.join(_STAND_INS)}) and numbers, each with a value and a source"
    raise HardwareError(
        f"{os.fspath(path)} is not the file of a chip.",
        where=here(),
        why=why,
        fix="meshwright calibrate --out chip.json",
    )


def get(name: str | os.PathLike[str] | Chip, *, prefer: str = "", **numbers: Any) -> Chip:
    """A chip by its name or an alias, or from a file that ``meshwright calibrate`` wrote.

    ``prefer`` names the source to believe where sources disagree.

    >>> get("TPU v5e").hbm_bytes_per_s, get("TPU v5e", prefer="cloud docs").hbm_bytes_per_s
    (810000000000.0, 819000000000.0)
    >>> get("trillium").name
    'tpu v6e'
    >>> get("h100", nvlink_bytes_per_s=3e11).nvlink_bytes_per_s
    300000000000.0
    """
    if isinstance(name, Chip):
        chip = name
    elif isinstance(name, os.PathLike) or (isinstance(name, str) and name.endswith(".json")):
        chip = read_chip(name)
    else:
        key = _plain(name) if isinstance(name, str) else ""
        if key not in _aliases():
            close = difflib.get_close_matches(key, _aliases(), n=1, cutoff=0.0)[0]
            raise HardwareError(
                f"No chip is called {name!r}.",
                where=here(),
                why=f"there are {', '.join(names())}",
                fix=f"hardware.get({_aliases()[close]!r})",
            )
        chip = _chips()[_aliases()[key]]
    if prefer:
        families = sorted({label.split(":")[0] for label in data()["sources"]})
        if prefer not in families and prefer not in data()["sources"]:
            raise HardwareError(
                f"No source is called {prefer!r}.",
                where=here(),
                why=f"there are {', '.join(families)}",
                fix=f"prefer={difflib.get_close_matches(prefer, families, n=1, cutoff=0.0)[0]!r}",
            )
        chip = Chip(chip.name, chip.kind, {key: fact.preferring(prefer) for key, fact in chip.facts.items()})
    return chip.replace(**numbers) if numbers else chip
