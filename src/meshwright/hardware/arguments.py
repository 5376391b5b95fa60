"""Arguments of public functions, checked once where users hand them in.

What an argument may be follows from its annotation: `KINDS` has a check for each, which returns the value to go on with
or raises the one error of its kind. A name that a function does not have is answered with the one it has for that.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial, wraps
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import Chip, dtype_name, get
from meshwright.hardware.machines import named_machine
from meshwright.hardware.measurements import check_measurements
from meshwright.hardware.placement import Span
from meshwright.hardware.topology import Topology
from meshwright.sharding.mesh_check import short
from meshwright.sharding.text_sdy import LARGEST

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Check = Callable[[str, Any, str], Any]  # of an argument's name and value, and what has the argument
MOST_LENGTH = 1 << 16  # of a sequence that is an argument

MOST_DIMS = 64  # of an array

# What others call it.
NAMES = {
    "memory_bytes": "memory", "hardware": "topology",
    "tp": "tensor", "mp": "tensor", "model": "tensor", "tensor_parallel": "tensor", "horizontal": "tensor",
    "dp": "data", "data_parallel": "data", "pp": "pipeline", "stages": "pipeline", "pipeline_parallel": "pipeline",
    "cp": "context", "context_parallel": "context", "ep": "expert", "expert_parallel": "expert", "experts": "expert",
    "sp": "sequence_parallel", "seq": "sequence", "seq_len": "sequence", "length": "sequence", "batch_size": "batch",
    "microbatch": "microbatches", "gradient_accumulation": "microbatches", "microbatch_size": "microbatch",
    "interleave": "chunks", "virtual_stages": "chunks", "checkpoint": "recompute", "remat": "recompute",
    "zero_stage": "zero", "attention": "flash", "hidden_size": "width", "dim": "width", "d_model": "width",
    "ffn": "hidden", "intermediate_size": "hidden", "num_layers": "layers", "num_heads": "heads",
    "vocab_size": "vocab", "chip": "hardware", "machine": "topology", "devices": "chips",
}  # fmt: skip


def refused(name: str, value: Any, of: str, why: str, fix: object) -> HardwareError:
    """The error for an argument that is of another kind; ``fix`` is a value to give."""
    return HardwareError(f"{name} of {of} is {short(value)}.", where=here(), why=why, fix=f"{name}={fix}")


def whole(name: str, value: Any, of: str, least: int = 1, most: int = LARGEST) -> int:
    """A whole number from ``least`` to ``most``, of 64 bits at most.

    >>> whole("batch", np.int32(8), "a step")
    8
    """
    if value.__class__ is int and least <= value <= most:
        return value
    if isinstance(value, np.integer) and least <= value <= most:
        return int(value)
    whole_float = isinstance(value, float) and value.is_integer() and least <= value <= most
    why = f"it is a whole number from {least}" + _up_to(value, most)
    raise refused(name, value, of, why, int(value) if whole_float else 8)


def _up_to(value: Any, most: int) -> str:
    """The end of a range, where it is reached."""
    large = isinstance(value, int | float) and value > most
    return "" if not large else ", of 64 bits at most" if most == LARGEST else f" to {most}"


def amount(name: str, value: Any, of: str, least: float = 0.0) -> float:
    """A finite number that is not negative.

    >>> amount("bytes", 1e9, "a collective")
    1000000000.0
    """
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if number and least <= value < math.inf and value < 1e300:
        return cast(float, value)
    why = "it is a finite number above 0" if least else "it is a finite number, and not negative"
    raise refused(name, value, of, why, 1 if least > 0 else 1e9)


def machine(name: str, value: Any, of: str) -> Chip | Topology:
    """A chip or a machine, or what names one.

    >>> machine("hardware", "h100 16", "a step")
    Topology('h100', 16)
    """
    if isinstance(value, str):
        try:
            return named_machine(value)
        except HardwareError as error:
            error.fix = re.sub(r"(?:hardware\.)?get\(('[^']*')\)", rf"{name}=\1", error.fix)
            raise
    if isinstance(value, Chip | Topology):
        return value
    raise refused(
        name, value, of, "it is a machine: the name of a chip, or chips in a shape", 'mw.hardware.Topology("h100", 8)'
    )


def topology(name: str, value: Any, of: str) -> Topology:
    """Chips in a shape, or the text that names them."""
    found = machine(name, value, of)
    if isinstance(found, Topology):
        return found
    raise refused(name, value, of, "it is chips in a shape; how many there are is not said", f"'{found.name} 8'")


def chip(name: str, value: Any, of: str) -> Chip:
    """A chip, or its name."""
    found = machine(name, value, of)
    return found.chip if isinstance(found, Topology) else get(found)


def sequence(check: Check, name: str, value: Any, of: str, least: int = 0) -> list[Any]:
    """Several values of one kind."""
    listed = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
    if listed and least <= len(value) <= MOST_LENGTH:
        try:
            return [check(f"{name}[{n}]", one, of) for n, one in enumerate(value)]
        except HardwareError as error:
            error.fix = f"{name}=[{error.fix.partition('=')[2]}]"
            raise
    why = f"it is a list of {least} to {MOST_LENGTH} values" if listed else "it is a list"
    raise refused(name, value, of, why, f"[{_example(check)}]")


def _example(check: Check) -> str:
    """A value that a check accepts: what it says to give instead of one that it does not."""
    try:
        check("value", object, "")
    except HardwareError as error:
        return error.fix.partition("=")[2]
    return "None"


def sizes(name: str, value: Any, of: str) -> Any:
    """The dims of an array: one whole number, or several."""
    return whole(name, value, of) if np.ndim(value) == 0 else sequence(whole, name, value, of)


def axes(name: str, value: Any, of: str) -> Any:
    """Axes of a mesh, by name or number."""
    if isinstance(value, str | int):
        return value
    if isinstance(value, Iterable) and not isinstance(value, bytes | type):
        each = list(value)
        if all(isinstance(one, str | int) for one in each):
            return each
    raise refused(name, value, of, "it is the name or number of an axis, or several", "0")


def dims(name: str, value: Any, of: str) -> Any:
    """Dims of an array, by number; counted from the end, they are negative."""
    number = partial(whole, least=-MOST_DIMS, most=MOST_DIMS - 1)
    return number(name, value, of) if np.ndim(value) == 0 else sequence(number, name, value, of)


def rings(name: str, value: Any, of: str) -> Any:
    """Whether axes are rings: all, or each."""
    return flag(name, value, of) if np.ndim(value) == 0 else sequence(flag, name, value, of)


def physical(name: str, value: Any, of: str) -> Any:
    """Physical axes, or parts of them, that a mesh axis lies on."""
    each = [value] if isinstance(value, str | int | Span) else value
    if isinstance(each, list | tuple) and all(isinstance(one, str | int | Span) for one in each):
        return value
    raise refused(name, value, of, "it is the name or number of an axis of the machine, or several", 0)


def measured(name: str, value: Any, of: str) -> Any:
    """Measurements of a machine."""
    check_measurements(value, f"{name} of {of}")
    return value


def entries(name: str, value: Any, of: str) -> Any:
    """How an array is split, dim by dim."""
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        parts = [one for entry in value for one in (entry if isinstance(entry, list | tuple) else [entry])]
        if all(one is None or isinstance(one, str) for one in parts):
            return value
    why = "it has the axes of each dim of an array: a name, several, or None"
    raise refused(name, value, of, why, "('x', None)")


def named(check: Check, name: str, value: Any, of: str) -> dict[str, Any]:
    """Values of one kind by name."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise refused(name, value, of, "it has a value for each name", f"{{'x': {_example(check)}}}")
    found = {}
    for key, one in value.items():
        try:
            found[key] = check(f"{name}[{key!r}]", one, of)
        except HardwareError as error:
            error.fix = f"{name}={{{key!r}: {error.fix.partition('=')[2]}}}"
            raise
    return found


def matrix(name: str, value: Any, of: str) -> Any:
    """Numbers in rows and columns."""
    try:
        found = np.asarray(value, float)
    except (ValueError, TypeError, OverflowError):
        found = np.zeros(0)
    if found.ndim == 2 and np.isfinite(found).all() and (found >= 0).all():
        return found
    raise refused(name, value, of, "it has a row of finite numbers, not negative, for each chip", "[[0, 1], [1, 0]]")


def given(name: str, value: Any, of: str) -> Any:
    """What the function itself checks."""
    return value


def function(name: str, value: Any, of: str) -> Any:
    """Something to call with a number."""
    if callable(value) and not isinstance(value, type):
        return value
    raise refused(name, value, of, "it is a function", "lambda *numbers: numbers[0]")


def path(name: str, value: Any, of: str) -> Any:
    """The name of a file."""
    if isinstance(value, str | os.PathLike):
        return value
    raise refused(name, value, of, "it is the name of a file", "'file.json'")


def flag(name: str, value: Any, of: str) -> bool:
    """Yes or no."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise refused(name, value, of, "it is True or False", "True")


def one_of(words: Sequence[Any], name: str, value: Any, of: str, others: Mapping[Any, Any] | None = None) -> Any:
    """One of a few words; ``others`` are names that some of them have elsewhere.

    >>> one_of(("none", "full"), "recompute", "full", "a strategy")
    'full'
    """
    plain = isinstance(value, str | int)
    if plain and value in words:
        return words[words.index(value)]
    elsewhere = others or {}
    known = f"it is one of {', '.join(map(str, words))}"
    near = get_close_matches(value, [*map(str, words), *elsewhere], 1) if isinstance(value, str) else []
    meant = elsewhere.get(near[0], near[0]) if near else words[0]
    why = f"{value} is called {meant} here; {known}" if plain and value in elsewhere else known
    raise refused(name, value, of, why, repr(meant))


def instance(kind: str, example: str, name: str, value: Any, of: str) -> Any:
    """An object of one class, given by its name because it may stand in a module above."""
    if any(base.__name__ == kind for base in type(value).__mro__):
        return value
    raise refused(name, value, of, f"it is a {kind}", f"{example}")


def having(method: str, kind: str, example: str, name: str, value: Any, of: str) -> Any:
    """An object with a method, of whatever class."""
    if callable(getattr(value, method, None)) and not isinstance(value, type):
        return value
    raise refused(name, value, of, f"it is {kind}", f"{example}")


def element(name: str, value: Any, of: str) -> Any:
    """A dtype that a machine has."""
    if isinstance(value, str | type | np.dtype) or hasattr(value, "dtype"):
        try:
            dtype_name(value)
        except HardwareError as error:
            error.fix = f"{name}='bf16'"
            raise
        return value
    raise refused(name, value, of, "it is the type of elements", "'bf16'")


def text(name: str, value: Any, of: str) -> str:
    """A word."""
    if isinstance(value, str):
        return value
    raise refused(name, value, of, "it is a word", EXAMPLES.get(name, "'exact'"))


_SHAPE = "TransformerShape(layers=32, width=4096, hidden=11008, heads=32, head_dim=128, vocab=32000)"
_STRATEGY = "Strategy(data=8)"
KINDS: dict[str, Check] = {
    "int": whole,
    "float": amount,
    "bool": flag,
    "str": text,
    "Machine": machine,
    "Hardware": machine,
    "Topology": topology,
    "str | Chip": chip,
    "int | Sequence[int]": sizes,
    "Sequence[int]": partial(sequence, whole),
    "tuple[int, ...]": partial(sequence, partial(whole, least=0)),
    "Mapping[str, int]": partial(named, whole),
    "Callable[[float], float]": function,
    "str | Path": path,
    "Axes": axes,
    "Spec": entries,
    "Sequence[bool]": partial(sequence, flag),
    "Program": partial(instance, "Program", "mw.make_program(lambda x: x @ x)(mnp.ones((8, 8)))"),
    "TransformerShape": partial(instance, "TransformerShape", _SHAPE),
    "Strategy": partial(instance, "Strategy", _STRATEGY),
}
_from_zero = partial(whole, least=0)
_above_zero = partial(amount, least=1e-12)
NAMED_KINDS: dict[str, Check] = {  # by the name of a parameter, before its annotation
    "concurrent": partial(sequence, partial(sequence, _from_zero)),
    "hidden_ratio": _above_zero,
    "idle": _above_zero,
    "kv_bytes_per_token": _above_zero,
    "members": partial(sequence, _from_zero),
    "moments": _from_zero,
    "position": partial(whole, least=0, most=1 << 20),
    "prompt": _from_zero,
    "seconds": _above_zero,
    "utilization": _above_zero,
    "zero": partial(one_of, (0, 1, 2, 3)),
}
EXAMPLES = {  # by annotation, or by name
    "float": "1e9",
    "Machine": "'h100'",
    "Hardware": "'h100'",
    "Topology": "'h100 8'",
    "str | Chip": "'h100'",
    "Sequence[int]": "[8, 128]",
    "TransformerShape": _SHAPE,
    "Strategy": _STRATEGY,
    "kind": "'all_reduce'",
    "memory": "'hbm'",
    "model": "'links'",
    "overlap": "'loops'",
    "schedule": "'1f1b'",
    "expression": "'ij,jk->ik'",
}


def checked(of: str = "", options: Callable[..., Any] | None = None, **kinds: Check) -> Callable[[F], F]:
    """A public function behind a check of its arguments, by their annotations or, by name, by ``kinds``.

    ``of`` is what has the arguments, in errors; ``options`` is the function that gets what is left over.

    >>> @checked()
    ... def rows(batch: int, **options: object) -> int:
    ...     return batch
    >>> rows(8)
    8
    """

    def wrap(function: F) -> F:
        read = cache(partial(_read, function, options, kinds))
        owner = of or function.__name__

        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            names, checks, needed, known, wanted = read()
            count = len(args)
            if count > len(names) or not needed[count] <= given.keys() <= known[count]:
                try:
                    wanted.bind(*args, **given)
                except TypeError as error:
                    raise _wrong_names(owner, wanted, given, error) from error
            found = dict(zip(names, args))
            for place in (found, given):
                for name, value in place.items():
                    check = checks.get(name)
                    if check is not None:
                        place[name] = check(name, value, owner)
            return function(*found.values(), *args[len(found) :], **given)

        return cast(F, call)

    return wrap


def checked_fields(of: str, **kinds: Check) -> Callable[[type[T]], type[T]]:
    """A class whose fields are checked as arguments are."""

    def wrap(made: type[T]) -> type[T]:
        made.__init__ = checked(of, **kinds)(made.__init__)  # type: ignore[method-assign, misc]
        return made

    return wrap


class _Wanted(NamedTuple):
    """What a function takes: names in their order, and the check of each; after so many by place, those that must and
    may follow by name; its signature."""

    names: tuple[str, ...]
    checks: Mapping[str, Check]
    needed: tuple[frozenset[str], ...]
    known: tuple[frozenset[str], ...]
    signature: Signature


def _read(function: Callable[..., Any], options: Callable[..., Any] | None, kinds: Mapping[str, Check]) -> _Wanted:
    """The parameters of a function, with those of what it hands options on to."""
    wanted = signature(function)
    parameters = list(wanted.parameters.values())
    if options is not None:
        more = signature(options).parameters.values()
        keywords = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in more if p.name not in wanted.parameters]
        keywords = [p for p in keywords if p.default is not p.empty]
        parameters = [*(p for p in parameters if p.kind is not p.VAR_KEYWORD), *keywords]
    checks = {p.name: KINDS[str(p.annotation).removesuffix(" | None")] for p in parameters if _has_kind(p)}
    checks |= {p.name: element for p in parameters if p.name.endswith("dtype")}
    checks |= {p.name: NAMED_KINDS[p.name] for p in parameters if p.name in NAMED_KINDS}
    checks |= kinds
    for p in parameters:
        if p.name in checks and (p.default is None or str(p.annotation).endswith("| None")):
            checks[p.name] = partial(_or_none, checks[p.name])
    single = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    names = tuple(p.name for p in single if p.kind is not p.KEYWORD_ONLY)
    left = [[p for p in single if p.name not in names[:count]] for count in range(len(names) + 1)]
    return _Wanted(
        names,
        checks,
        tuple(frozenset(p.name for p in some if p.default is p.empty) for some in left),
        tuple(frozenset(p.name for p in some) for some in left),
        wanted.replace(parameters=parameters),
    )


def _or_none(check: Check, name: str, value: Any, of: str) -> Any:
    """Nothing, or what a check accepts."""
    return None if value is None else check(name, value, of)


def _has_kind(parameter: Parameter) -> bool:
    return str(parameter.annotation).removesuffix(" | None") in KINDS


def _wrong_names(owner: str, wanted: Signature, given: Mapping[str, Any], error: TypeError) -> HardwareError:
    """The error for arguments that a function does not have, or lacks."""
    known = [name for name in wanted.parameters if name != "self"]
    unknown = [name for name in given if name not in known]
    if unknown:
        meant, value = called_here(unknown[0], known), short(given[unknown[0]])
        why = f"{unknown[0]} is called {meant} here" if meant else f"it has {', '.join(known)}"
        if (unknown[0], meant) == ("microbatch", "microbatches"):
            why, value = "microbatches are counted: they are the batch of a replica over the size of one", "8"
        return HardwareError(
            f"There is no {unknown[0]} of {owner}.",
            where=here(),
            why=why,
            fix=f"{meant}={value}" if meant else f"leave out {unknown[0]}={value}",
        )
    needed = [p for p in wanted.parameters.values() if p.default is p.empty and p.name in known]
    return HardwareError(
        f"The arguments do not fit {owner}.",
        where=here(),
        why=str(error).replace("keyword-only ", ""),  # of which some Pythons tell
        fix=", ".join(f"{p.name}={EXAMPLES.get(p.name, EXAMPLES.get(str(p.annotation), 8))}" for p in needed),
    )


def called_here(name: str, known: Sequence[str]) -> str | None:
    """The name that something has here, if it has one.

    >>> called_here("pp", ["data", "pipeline"]), called_here("dta", ["data"]), called_here("x", ["data"])
    ('pipeline', 'data', None)
    """
    if NAMES.get(name) in known:
        return NAMES[name]
    return next(iter(get_close_matches(name, known, 1, 0.7)), None)
