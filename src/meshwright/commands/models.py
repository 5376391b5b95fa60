"""Models as a command is told them: by name and sizes, or in a Python file."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from meshwright.api.grad import value_and_grad
from meshwright.arrays.tracing import eval_shape, leaf_type
from meshwright.commands.programs import SHAPES, SIZES, read_shape
from meshwright.commands.user_code import kind_of, load, running
from meshwright.core import tree
from meshwright.core.program import Program
from meshwright.errors import MeshwrightError, TextError
from meshwright.hardware.transformer import TransformerShape
from meshwright.random import key
from meshwright.search.layered import GPT, LayeredMLP
from meshwright.search.strategies import Model
from meshwright.search.traced import Traced, traced
from meshwright.search.unrolled import MLP
from meshwright.sharding.text_sdy import read_integer

NAMED = ", ".join(SHAPES)
_MODEL = "model = dist.GPT(layers=12, dim=768, heads=12)"
_STEP = "def model(): return train_step, params, batch"
_TRACED_BATCH = 8  # how many samples a step is traced with does not matter
_PARTS = ("init", "make_batch")


def read_model(text: str, batch: int) -> MLP | GPT | TransformerShape:
    """A model by its name or its sizes.

    >>> read_model("mlp:16x8192", 64), read_model("gpt2", 64).parameters
    (MLP(layers=16, dim=8192, batch=64), 123532032)
    >>> read_model("llama3-70b", 64).layers
    80
    """
    if text in SHAPES:
        shape = SHAPES[text]
        return GPT(shape.layers, shape.width, shape.heads) if text.startswith("gpt2") else shape
    if "=" in text:
        return read_shape(text, "--model")
    match = re.fullmatch(r"(mlp|gpt):([0-9]+(?:x[0-9]+)*)", text, re.ASCII)
    sizes = [read_integer(size) for size in match[2].split("x")] if match else []
    wanted = {"mlp": 2, "gpt": 3}.get(match[1], 0) if match else 0
    if not sizes or len(sizes) != wanted or not all(sizes):
        meant = get_close_matches(text, SHAPES, 1)
        raise TextError(
            f"{text!r} is not a model.",
            why="a model is mlp:LAYERSxWIDTH, gpt:LAYERSxWIDTHxHEADS with sizes from 1, the sizes of a transformer "
            f"({SIZES}), or one of {NAMED}",
            fix=f"--model {meant[0] if meant else 'mlp:16x8192'}",
        )
    numbers = [size for size in sizes if size is not None]
    return MLP(numbers[0], numbers[1], batch) if wanted == 2 else GPT(*numbers)


class FileModel(NamedTuple):
    """The model of a Python file, and how many samples its step has, if the file says so."""

    model: Model
    batch: int | None


def model_of_file(text: str, settings: str | None) -> FileModel:
    """The model of a Python file: ``FILE.py`` or ``FILE.py:NAME``.

    It is the value of that name, or else of ``model``, or else ``Config()``: a `dist` model, a configuration of the
    file's ``init``, ``make_batch`` and ``train_step`` (or ``loss``), or a function that returns one of these or
    ``(step, params, batch)``. ``settings`` replace fields of a configuration.
    """
    path, name, module, value = _value_of_file(text, settings, _MODEL)
    with running(path, path):
        if _is_layered(value):
            given = value.rows if isinstance(value, Traced) else value.batch if isinstance(value, MLP) else None
            return FileModel(value, given)
        step = _step_of(module, value, _TRACED_BATCH)
        if step is not None:
            if len(step) != 3:
                raise MeshwrightError(
                    f"{path} gives a step with {len(step) - 1} argument{'s' * (len(step) != 2)}.",
                    why="a search is of a step of parameters and a batch: (step, params, batch)",
                    fix=f"meshwright layout {text}, or a step of (params, batch)",
                )
            rows = {leaf_type(x).shape[0] for x in tree.leaves(step[2]) if leaf_type(x).ndim}
            said = isinstance(value, tuple) or "batch" not in inspect.signature(module.make_batch).parameters
            return FileModel(traced(*step), min(rows) if said and rows else None)
    raise MeshwrightError(
        f"{path} has no model.",
        why=f"{name or 'model'} is {_kind(value)}, and a model is a dist.GPT, a dist.MLP, a configuration of init, "
        "make_batch and train_step, or (step, params, batch)",
        fix=_MODEL,
    )


def step_of_file(text: str, settings: str | None, batch: int | None) -> tuple[Any, ...]:
    """The step of a Python file, as in `model_of_file`, and its arguments, most often parameters and a batch.

    A configuration is asked for a batch of that many samples, 512 if nothing is said.
    """
    path, name, module, value = _value_of_file(text, settings, _STEP)
    with running(path, path):
        found = _step_of(module, value, batch or 512) if not _is_layered(value) else None
    if found is not None and isinstance(value, tuple) and batch is not None:
        raise MeshwrightError(
            "--batch is for a configuration.",
            why=f"{path} gives the step with a batch of its own",
            fix="leave out --batch",
        )
    if found is None:
        raise MeshwrightError(
            f"{path} has no step.",
            why=f"{name or 'model'} is {_kind(value)}, and a step is a configuration of init, make_batch and "
            "train_step, or (step, params, batch), or (step, …) with other arguments",
            fix=_STEP,
        )
    return found


def _kind(value: Any) -> str:
    """What a value is, for a message; of a tuple, what it begins with."""
    if not isinstance(value, tuple):
        return kind_of(value)
    return f"a tuple of {len(value)}" + (f" that begins with {kind_of(value[0])}" if value else "")


def _value_of_file(text: str, settings: str | None, fix: str) -> tuple[str, str, ModuleType, Any]:
    """The path of a file, the name in it, the module, and the value of that name; ``fix`` is what to write where there
    is none."""
    path, name = text, ""
    if not os.path.isfile(text) and ".py:" in text:
        path, _, name = text.rpartition(":")
    module = load(path)
    value = _named(path, module, name, fix)
    if _is_function(value):
        _check_plain(value, f"{path}:{name or 'model'}")
        with running(path, f"{path}:{name or 'model'}"):
            value = value()
    if settings is not None:
        value = _changed(value, settings, path)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], tuple):
        value = (value[0], *value[1])
    return path, name, module, value


def _step_of(module: ModuleType, value: Any, batch: int) -> tuple[Any, ...] | None:
    """A step and its arguments: as given, or of a file for a configuration, on shapes alone."""
    if isinstance(value, tuple):
        return value if len(value) > 1 and (callable(value[0]) or isinstance(value[0], Program)) else None
    step = _step(module)
    if step is None or not all(hasattr(module, part) for part in _PARTS):
        return None
    rows: dict[str, Any] = {}
    if "batch" in inspect.signature(module.make_batch).parameters:
        rows["batch"] = batch
    params = eval_shape(lambda k: module.init(k, value), key(0))
    data = eval_shape(lambda k: module.make_batch(k, value, **rows), key(1))
    return partial(step, config=value), params, data


def _named(path: str, module: ModuleType, name: str, fix: str) -> Any:
    if name:
        if not hasattr(module, name):
            known = [n for n, v in vars(module).items() if not n.startswith("_") and not isinstance(v, ModuleType)]
            raise MeshwrightError(f"{path} has no {name!r}.", why=f"it has {', '.join(known) or 'nothing'}", fix=path)
        return getattr(module, name)
    if hasattr(module, "model"):
        return module.model
    config = getattr(module, "Config", None)
    if config is None or _step(module) is None or not all(hasattr(module, part) for part in _PARTS):
        raise MeshwrightError(
            f"{path} has no model.",
            why="it has neither a name `model`, nor Config, init, make_batch and train_step",
            fix=fix,
        )
    with running(path, f"{path}:Config"):
        return config()


def _is_function(value: Any) -> bool:
    return callable(value) and not _is_layered(value)


def _check_plain(function: Callable[..., Any], shown: str) -> None:
    """Refuse a function that needs arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise MeshwrightError(
            f"{shown} cannot be called without arguments.",
            why=f"{error}; a function that gives a model takes none",
            fix="def model(): return train_step, params, batch",
        ) from error
    except ValueError:  # nothing says what it takes
        pass


def _is_layered(value: Any) -> bool:
    layers = ("layers", "layer", "head", "boundary", "divides", "kind")
    return isinstance(value, MLP | GPT | TransformerShape | Traced | LayeredMLP) or all(
        hasattr(value, name) for name in layers
    )


def _step(module: ModuleType) -> Callable[..., Any] | None:
    step = getattr(module, "train_step", None)
    if step is None and hasattr(module, "loss"):
        step = value_and_grad(module.loss)
    return step if callable(step) else None


def _changed(value: Any, settings: str, path: str) -> Any:
    """A configuration with other values of some fields."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise MeshwrightError(
            "--config is for a configuration.", why=f"the model of {path} is {kind_of(value)}", fix="leave it out"
        )
    known = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    changes: dict[str, Any] = {}
    for part in settings.split(","):
        name, equals, text = (piece.strip() for piece in part.partition("="))
        if name not in known or not equals:
            raise TextError(
                f"{part.strip()!r} sets no field of the configuration.",
                why=f"its fields are {', '.join(known)}",
                fix=f"--config {next(iter(known), 'name')}=…",
            )
        changes[name] = _read(text, known[name], name)
    with running(path, path):
        return dataclasses.replace(value, **changes)


def _read(text: str, like: Any, name: str) -> Any:
    """A value of the kind that a field has."""
    found: bool | int | float | None
    if isinstance(like, bool):
        found = {"0": False, "1": True, "false": False, "true": True}.get(text.lower())
    elif isinstance(like, int):
        found = read_integer(text) if text.isascii() and text.isdigit() else None
    elif isinstance(like, float):
        found = float(text) if re.fullmatch(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e-?[0-9]+)?", text, re.ASCII) else None
    else:
        return text
    if found is None:
        kind = {bool: "0 or 1", int: "a whole number", float: "a number"}[type(like)]
        raise TextError(f"{name} of --config is {text!r}.", why=f"it is {kind}", fix=f"--config {name}={like}")
    return found
