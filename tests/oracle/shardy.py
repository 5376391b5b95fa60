"""The real Shardy, as jaxlib has it: runs passes on modules."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

FUNCTION_PASSES = ("populate-op-sharding-rules", "insert-explicit-reshards", "reshard-to-collectives")


@cache
def context() -> Any:
    found = mlir.make_ir_context()
    found.enable_multithreading(False)  # so that a child process can go on with it
    return found


def apply(text: str, *passes: str) -> str:
    """The module after passes such as ``basic-propagate`` or ``propagation-pipeline``, printed. Raises ir.MLIRError."""
    with context():
        module = ir.Module.parse(text)
        for name in passes:
            nested = f"func.func(sdy-{name})" if name.split("{")[0] in FUNCTION_PASSES else f"sdy-{name}"
            PassManager.parse(f"builtin.module({nested})").run(module.operation)
        return str(module)


@cache
def _without_reshards() -> str:
    """Shardy's pipeline but for the one pass of its export that adds reshards, which is the partitioner's work."""
    with context():
        passes = str(PassManager.parse("builtin.module(sdy-propagation-pipeline)"))
    passes = re.sub(r"func\.func\(sdy-insert-explicit-reshards[^)]*\),", "", passes)
    passes = re.sub(r"canonicalize\{.*top-down=false\}", "canonicalize{enable-patterns=sdy-collective}", passes)
    return passes.replace(" module-dump-directory=", "").replace("sdy-save-module,", "")


def pipeline_without_reshards(text: str) -> str:
    """The module after Shardy's pipeline, as far as it is about propagation."""
    with context():
        module = ir.Module.parse(text)
        PassManager.parse(_without_reshards()).run(module.operation)
        return str(module)


def apart(function: Callable[..., str], *args: str) -> str | None:
    """What a function gives in a process of its own: None where Shardy refuses the module or does not survive it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            found = function(*args)
        except ir.MLIRError:
            os._exit(1)
        with os.fdopen(writing, "wb") as file:
            pickle.dump(found, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else None
