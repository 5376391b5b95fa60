"""What ``explain`` said, read back from files: ``meshwright explain --json``, and snapshots of tests."""

from __future__ import annotations

import json
from typing import Any

from meshwright.compile.explain import SCHEMA
from meshwright.core.source import here
from meshwright.errors import MeshwrightError

SNAPSHOTS = "meshwright.comms/1"
_RECORD = {
    "kind": str, "axes": list, "bytes": int, "seconds": float | int, "times": int, "line": str | None, "stack": list,
    "scopes": list, "direction": str, "value": str, "why": str,
}  # fmt: skip
_WHOLE = {
    "machine": str | None, "seconds": float | int | None, "exposed_seconds": float | int | None,
    "peak_bytes_per_device": int | None, "bytes_received_per_device": int, "collectives": list,
}  # fmt: skip
_FIX = "meshwright explain model.py:example --json > saved.json"


def read_explanation(text: str, file: str, fix: str = _FIX) -> dict[str, Any]:
    """An explanation from JSON that `Explanation.to_json` gave; an error that says what is wrong with it."""
    return checked(_loaded(text, file, fix), file, fix)


def read_snapshots(text: str, file: str, fix: str) -> dict[str, Any]:
    """The explanations of a file of snapshots by name."""
    found = _loaded(text, file, fix)
    if not isinstance(found, dict) or found.get("schema") != SNAPSHOTS or not isinstance(found.get("programs"), dict):
        raise _wrong(file, f"it is no JSON of schema {SNAPSHOTS!r}", fix)
    return {name: checked(one, file, fix) for name, one in found["programs"].items()}


def checked(found: Any, file: str, fix: str = _FIX) -> dict[str, Any]:
    """An explanation that was read, if it is one."""
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise _wrong(file, f"it is no JSON of schema {SCHEMA!r}", fix)
    _check(found, _WHOLE, "it", file, fix)
    for n, one in enumerate(found["collectives"]):
        if not isinstance(one, dict):
            raise _wrong(file, f"collective {n} is no object", fix)
        _check(one, _RECORD, f"collective {n}", file, fix)
        for name in ("axes", "stack", "scopes"):
            if not all(isinstance(item, str) for item in one[name]):
                raise _wrong(file, f"{name!r} of collective {n} is no list of strings", fix)
    return found


def _loaded(text: str, file: str, fix: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(file, f"it is no JSON: {error}", fix) from error


def _check(found: dict[str, Any], kinds: dict[str, Any], what: str, file: str, fix: str) -> None:
    for name, kind in kinds.items():
        if name not in found:
            raise _wrong(file, f"{what} has no {name!r}", fix)
        if not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise _wrong(file, f"{name!r} of {what} is {json.dumps(found[name])[:60]}", fix)


def _wrong(file: str, why: str, fix: str) -> MeshwrightError:
    return MeshwrightError(f"{file} does not say what a program sends.", where=here(), why=why, fix=fix)
