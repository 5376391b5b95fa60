"""Kinds of arguments that steps of transformers have, beside those of `hardware.arguments`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from meshwright.core.dtypes import as_dtype
from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.arguments import Check, whole
from meshwright.hardware.chips import dtype_name
from meshwright.sharding.mesh_check import short

_FLOATS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "fp8": "float8_e4m3fn"}
_STORED = {**_FLOATS, "int8": "int8", "int4": "int4"}


def _one_of(known: Mapping[str, str], name: str, value: Any, of: str) -> str:
    """The full name of a dtype that is one of a few; one that is written out stays as it is."""
    try:
        found = dtype_name(value) if isinstance(value, str | type) or hasattr(value, "name") else ""
    except HardwareError:
        found = ""
    if found not in known:
        raise HardwareError(
            f"{name} of {of} is {short(value)}.",
            where=here(),
            why=f"it is one of {', '.join(known)}",
            fix=f"{name}='bf16'",
        )
    try:
        return str(as_dtype(value))
    except TypeError:  # a name that machines have, as fp8
        return known[found]


STEP: dict[str, Check] = dict.fromkeys(("batch", "sequence", "context"), partial(whole, most=1 << 32))
computed = partial(_one_of, _FLOATS)
stored = partial(_one_of, _STORED)
