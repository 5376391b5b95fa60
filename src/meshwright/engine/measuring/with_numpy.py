"""Measuring through NumPy."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshwright.engine.measuring.cases import Case, Scale, Unsupported


class Numpy:
    """NumPy on the host, in f32 throughout."""

    name = "numpy"
    on_accelerator = False

    def __init__(self, quick: bool) -> None:
        self.random = np.random.default_rng(0)
        self.facts = {
            "version": np.__version__, "device": platform.processor() or platform.machine(), "platform": "cpu",
            "devices": 1, "units": os.cpu_count(), "matmul_f32": "f32",
        }  # fmt: skip

    def array(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        if dtype.startswith("below"):
            return self.random.integers(int(dtype.split()[1]), size=shape)
        return self.random.standard_normal(shape, dtype=np.float32)

    def wait(self, value: Any) -> None:
        """NumPy returns when it is done."""

    def function(self, case: Case) -> Callable[..., Any]:
        if case.dtype != "f32":
            raise Unsupported("NumPy multiplies f32")
        s = case.sizes
        functions: dict[str, Callable[..., Any]] = {
            "matmul": np.matmul, "nothing": lambda x: x + 1, "add": np.add, "sum_rows": lambda x: x.sum(1),
            "mean_rows": lambda x: x.mean(1), "sum_columns": lambda x: x.sum(0), "max_rows": lambda x: x.max(1),
            "sum_all": np.sum, "transpose": lambda x: np.ascontiguousarray(x.T), "gather": lambda x, i: x[i],
            "relu": lambda x: np.maximum(x, 0), "axpy": lambda x, y: np.add(np.float32(2.5) * x, y),
        }  # fmt: skip
        if case.op == "chain":
            return lambda x, w: [x @ w for _ in range(s["links"])][-1]
        if case.op not in functions:
            raise Unsupported(f"{case.op} is not one NumPy kernel or a few")
        return functions[case.op]

    def collectives(self, scale: Scale) -> Iterator[Case]:
        """None: there is one device."""
        yield from ()

    def compiled(self, function: Any, *arguments: Any) -> tuple[Any, dict[str, Any]]:
        """The function itself: nothing is known of it before it runs."""
        return function, {}

    def kernels(self, run: Callable[[], Any]) -> list[list[Any]]:
        """NumPy has no profiler."""
        return []

    def step(self, case: Case) -> tuple[Any, Any, tuple[Any, ...]]:
        """Only steps that NumPy could differentiate."""
        raise Unsupported("NumPy has no derivatives")
