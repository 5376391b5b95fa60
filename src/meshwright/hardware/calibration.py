"""From measurements of a machine to its numbers, and how well these predict what they were not fitted to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import copysign, inf, log
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import Chip, Fact, get, item_bytes
from meshwright.hardware.kernels import CONVOLUTIONS, FAMILY, MOVING, Kernels
from meshwright.hardware.measurements import MEASURE
from meshwright.hardware.products import ProductSizes, Tiled, cut

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Compared:
    """A measured time and the one predicted for it."""

    name: str
    part: str
    op: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """The prediction's error relative to the measurement: 0.1 is 10 % too long."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Calibration:
    """A measured machine: where it was measured, its numbers, and every case compared."""

    name: str
    machine: Mapping[str, Any]
    framework: str
    kernels: Kernels
    compared: tuple[Compared, ...]
    failed: tuple[str, ...] = ()

    def tested(self, raw: Mapping[str, Any]) -> Calibration:
        """The same numbers, compared with other measurements of the same machine through the same framework too."""
        other = (str(raw["machine"].get("device", "machine")), raw["framework"])
        if other != (self.name, self.framework):
            raise HardwareError(
                "The measurements to test with are of another machine.",
                where=here(),
                why=f"they are of {other[0]} through {other[1]}, the others of {self.name} through {self.framework}",
                fix=MEASURE.replace("--keep", f"--engine {self.framework} --keep"),
            )
        seen = {one.name for one in self.compared}
        more = tuple(one for one in compare(raw, self.kernels) if one.name not in seen)
        return replace(self, compared=(*self.compared, *more))

    def of(self, *parts: str) -> tuple[Compared, ...]:
        """The cases of some parts: "calibration", "held out", "step"."""
        return tuple(one for one in self.compared if one.part in parts)

    def errors(self, *parts: str) -> tuple[float, float]:
        """The median and the worst error of some parts, by size."""
        found = [abs(one.error) for one in self.of(*parts)]
        return (median(found), max(found)) if found else (0.0, 0.0)

    @property
    def chip(self) -> Chip:
        """The chip of this name with measured efficiencies, or one of which only the measurements are known."""
        k, label = self.kernels, ("measured",)
        note = f"through {self.framework} {self.machine.get('version', '')}".rstrip()
        platform = str(self.machine.get("platform", "cpu"))
        kind = platform if platform in ("tpu", "cpu") else "gpu"
        facts: dict[str, Fact] = {}
        try:
            base = get(self.name)
        except HardwareError:
            name = self.name
            facts["hbm_bytes_per_s"] = Fact(k.bytes_per_s, label, note)
            facts |= {f"{dtype}_flops_per_s": Fact(rate, label, note) for dtype, rate in k.flops_per_s.items()}
        else:
            name, kind, facts = base.name, base.kind, dict(base.facts)
            dtype = "bf16" if "bf16" in k.flops_per_s else next(iter(k.flops_per_s))
            share = min(k.flops_per_s[dtype], k.sustained_flops_per_s.get(dtype, inf)) / base.flops_per_s(dtype)
            facts["matmul_efficiency"] = Fact(round(share, 4), label, f"{dtype}, {note}")
            facts["hbm_efficiency"] = Fact(round(k.bytes_per_s / base.hbm_bytes_per_s, 4), label, note)
        facts["kernels"] = Fact(asdict(k), label, note)
        return Chip(name, kind, facts)

    @property
    def file(self) -> str:
        """The text of a chip file: the chip's numbers, where they come from, and how well they predict."""
        chip = self.chip
        numbers = {name: _entry(fact) for name, fact in chip.facts.items()}
        parts = {"fitted to": ("calibration",), "unseen": ("held out", "step")}
        errors = {
            what: {"cases": len(self.of(*which)), "median": self.errors(*which)[0], "worst": self.errors(*which)[1]}
            for what, which in parts.items()
        }
        about = {"device": self.name, "framework": self.framework, "machine": dict(self.machine), "errors": errors}
        return (
            json.dumps({"name": chip.name, "kind": chip.kind, "measured": about, "numbers": numbers}, indent=1) + "\n"
        )

    @property
    def text(self) -> str:
        """The table of what the fit has not seen, and the errors."""
        k = self.kernels
        lines = [
            f"{self.name}, measured through {self.framework} {self.machine.get('version', '')}".rstrip(),
            f"  memory    {k.bytes_per_s / 1e9:10.4g} GB/s",
            *(f"  {dtype:<9} {rate / 1e12:10.4g} TFLOP/s in products" for dtype, rate in k.flops_per_s.items()),
            f"  launch    {k.launch_seconds * 1e6:10.4g} µs a kernel, {k.call_seconds * 1e6:.4g} µs a call",
            "",
        ]
        for part, what in (("held out", "unseen ops"), ("step", "train steps")):
            rows = self.of(part)
            if rows:
                width = max(len(one.name) for one in rows)
                lines.append(f"{what:<{width}}     measured   predicted    error")
                lines += [
                    f"{one.name:<{width}}  {_time(one.measured):>11} {_time(one.predicted):>11} {one.error:+8.1%}"
                    for one in rows
                ]
                lines.append("")
        for parts, what in ((("calibration",), "fitted to"), (("held out", "step"), "unseen")):
            middle, worst = self.errors(*parts)
            lines.append(f"{what}: {len(self.of(*parts))} cases, median error {middle:.1%}, worst {worst:.1%}")
        lines += [f"not measured: {one}" for one in self.failed]
        return "\n".join(lines)


def _entry(fact: Fact) -> dict[str, Any]:
    entry: dict[str, Any] = {"value": fact.value, "source": list(fact.source)}
    if fact.note:
        entry["note"] = fact.note
    if fact.other:
        entry["other"] = [_entry(one) for one in fact.other]
    return entry


def _time(seconds: float) -> str:
    scale, unit = (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    return f"{seconds * scale:.4g} {unit}"


def calibrate(raw: Mapping[str, Any]) -> Calibration:
    """Fit the numbers of a machine to the part "calibration" of its measurements, and predict all of them."""
    machine = raw["machine"]
    shown = [row for row in timed(raw) if row["part"] == "calibration"]
    kernels = fit(shown, units=machine.get("units") or 1, tiled=machine.get("platform") != "cpu")
    name = str(machine.get("device", "machine"))
    failed = [row for row in raw.get("failed", ()) if not row["why"].startswith("unsupported")]
    said = tuple(f"{row['op']} {row['dtype']} {row['sizes']}: {row['why']}" for row in failed)
    return Calibration(name, machine, raw["framework"], kernels, compare(raw, kernels), said)


def compare(raw: Mapping[str, Any], kernels: Kernels) -> tuple[Compared, ...]:
    """Every measurement and what the numbers predict for it."""
    return tuple(
        Compared(row["name"], row["part"], row["op"], row["time"], _predicted(kernels, row))
        for row in timed(raw)
        if row["part"] in ("calibration", "held out", "step") and _rated(row, kernels)
    )


def timed(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The measurements of kernels that are modelled, each with its time.

    On an accelerator, where clocks go up and down, that is the median of its repetitions; on a CPU, where other
    programs only add to it, the least.
    """
    middle: Callable[[Sequence[float]], float] = min if raw["machine"].get("platform") == "cpu" else median
    return [{**row, "time": float(middle(row["seconds"]))} for row in raw["measurements"] if _known(row)]


def _predicted(kernels: Kernels, row: Row) -> float:
    return kernels.seconds(row["work"], calls=1 / row.get("together", 1))


def _known(row: Row) -> bool:
    return all(one["kind"] in (*MOVING, *CONVOLUTIONS, "matmul", "attention") for one in row["work"])


def _rated(row: Row, kernels: Kernels) -> bool:
    return all(one.get("dtype", "") in ("", *kernels.flops_per_s) for one in row["work"])


def fit(rows: Sequence[Row], units: int, tiled: bool) -> Kernels:
    """The numbers under which the rows' times are closest, by least squares of their logarithms.

    Memory is fitted first, then each family of products, then the share of the bandwidth that each other kind of kernel
    reaches, to the cases that show it.
    """
    calls = [row["time"] for row in rows if row["op"] == "nothing"]
    products = [row for row in rows if {one["kind"] for one in row["work"]} == {"matmul"}]
    streams = [row for row in rows if {one["kind"] for one in row["work"]} == {"stream"} and row["op"] != "nothing"]
    types = sorted({one["dtype"] for row in products for one in row["work"]})
    if not streams or not products:
        raise HardwareError(
            "A machine is not fitted to these measurements.",
            where=here(),
            why=f"of {len(rows)} cases {len(streams)} are elementwise and {len(products)} are products",
            fix=MEASURE,
        )
    fastest = max(sum(one["read"] + one["written"] for one in row["work"]) / row["time"] for row in streams)
    busiest = max(sum(one.get("elements", 0) for one in row["work"]) / row["time"] for row in streams)
    call = min(calls, default=0.0)

    def numbers(x: Sequence[float]) -> Kernels:
        start, launch, memory, elements = x
        return Kernels(units, tiled, call, start, launch, memory, elements, {})

    found = numbers(search(lambda x: _errors(numbers(x), streams), [3e-6, 1.5e-6, fastest, busiest or 1e30]))
    for dtype in types:
        shown = [row for row in products if _types(row) == {dtype}]
        rate = max(_flops(row) / row["time"] for row in shown)
        compiled = [row for row in shown if tiled and _is_compiled(row, units)]
        found = _with_family(found, dtype, [row for row in shown if row not in compiled] or shown, LIBRARY, rate)
        found = _with_family(found, f"{dtype} compiled", compiled, COMPILED, rate)
    for kind in MOVING[1:]:
        also = "matmul" if kind == "normalize" else ""  # attention of separate kernels
        found = _with_share(found, kind, [row for row in rows if _shows(row, kind, also)])
    return _with_attention(_with_convolutions(found, rows), [row for row in rows if _shows(row, "attention")])


# What is fitted of a family of products, and where the search starts; rates are shares of the fastest product's.
LIBRARY = {"flops_per_s": 1.3, "edge": 20.0, "sustained_flops_per_s": 1.1, "ramp_seconds": 2e-6, "fill_seconds": 2e-7,
           "store_bytes_per_s": 4e10, "reduce_seconds": 1e-6, "operands": 0.9, "unaligned": 1.05}  # fmt: skip
COMPILED = {"flops_per_s": 1.5, "ramp_seconds": 5e-7, "fill_seconds": 2e-7, "store_bytes_per_s": 2e10,
            "step_seconds": 6e-9, "uneven_seconds": 9e-9, "reduce_seconds": 5e-7, "operands": 0.9,
            "unaligned": 1.1}  # fmt: skip
WINDOWED = {"flops_per_s": 1.2, "edge": 30.0, "sustained_flops_per_s": 1.0, "ramp_seconds": 3e-6,
            "store_bytes_per_s": 1e11, "reduce_seconds": 5e-6, "operands": 0.5}  # fmt: skip
NOT_TILED = ("flops_per_s", "edge", "fill_seconds", "operands")


def _with_family(kernels: Kernels, name: str, rows: Sequence[Row], first: Mapping[str, float], rate: float) -> Kernels:
    """The numbers with those of a family of products, if any row shows it."""
    start = {key: value * rate if "flops" in key else value for key, value in first.items()}
    start = start if kernels.tiled else {key: start[key] for key in start if key in NOT_TILED}

    def shared(x: Sequence[float]) -> Kernels:
        family = Tiled(**dict(zip(start, x, strict=True)))
        return replace(kernels, products={**kernels.products, name: family})

    return shared(search(lambda x: _errors(shared(x), rows), list(start.values()))) if rows else kernels


def _with_share(kernels: Kernels, kind: str, rows: Sequence[Row]) -> Kernels:
    """The numbers with the share of the bandwidth that kernels of a kind reach, if any row shows it."""

    def shared(x: Sequence[float]) -> Kernels:
        found = replace(kernels, share={**kernels.share, kind: x[0]})
        if kind == "column_reduce" and kernels.tiled:
            return replace(found, column_seconds=x[1])
        if kind != "normalize":
            return found
        return replace(found, row_bytes=x[1], row_elements_per_s=x[2], row_bytes_per_s=x[3])

    more = {"normalize": [kernels.row_bytes, 2 * kernels.elements_per_s, 2e10], "column_reduce": [4e-9]}
    return shared(search(lambda x: _errors(shared(x), rows), [1.0, *more.get(kind, [])])) if rows else kernels


def _with_convolutions(kernels: Kernels, rows: Sequence[Row]) -> Kernels:
    """The numbers with those of windows wider than an element, and how long the host calls a convolution."""
    for family in dict.fromkeys(FAMILY.values()) if kernels.tiled else ():
        kinds = {kind for kind in CONVOLUTIONS if FAMILY[kind] == family}
        shown = [row for row in rows if {one["kind"] for one in row["work"]} <= kinds]
        rate = max(kernels.flops_per_s.values()) / 1.3
        kernels = _with_family(kernels, family, [row for row in shown if _is_wide(row)], WINDOWED, rate)
        kernels = _with_call(kernels, family, [row for row in shown if not _is_wide(row)])
    return kernels


def _with_call(kernels: Kernels, family: str, rows: Sequence[Row]) -> Kernels:
    """The numbers with how long the host calls a convolution of a family; that varies, and so no case is an outlier."""

    def called(x: Sequence[float]) -> Kernels:
        return replace(kernels, library_seconds={**kernels.library_seconds, family: x[0]})

    least = 0.8 * min((row["time"] for row in rows), default=0.0)
    return called(search(lambda x: _errors(called(x), rows, bend=1.0), [least])) if rows else kernels


def _with_attention(kernels: Kernels, rows: Sequence[Row]) -> Kernels:
    """The numbers with those of fused attention."""

    def shared(x: Sequence[float]) -> Kernels:
        found = replace(kernels, exponentials_per_s=x[0], share={**kernels.share, "attention": x[1]})
        return replace(found, attention_seconds=x[2], attention_fill_seconds=x[3]) if kernels.tiled else found

    first = [kernels.exponentials_per_s, 0.9, 3e-6, 2e-6]
    return shared(search(lambda x: _errors(shared(x), rows), first)) if rows else kernels


def _shows(row: Row, kind: str, also: str = "") -> bool:
    """Whether a case shows a kind of kernel: it has no other but streams, and those that are fitted before."""
    return kind in (kinds := {one["kind"] for one in row["work"]}) and kinds <= {kind, "stream", also}


def _is_compiled(row: Row, units: int) -> bool:
    """Whether XLA runs a case's products by kernels of its own."""
    sizes = ((one.get("batch", 1), one["m"], one["k"], one["n"], int(item_bytes(one["dtype"]))) for one in row["work"])
    return all(cut(ProductSizes(*one), units)[2] for one in sizes)


def _is_wide(row: Row) -> bool:
    return all(one.get("kernel", 1) > 1 for one in row["work"])


def _types(row: Row) -> set[str]:
    return {one["dtype"] for one in row["work"]}


def _flops(row: Row) -> float:
    return float(
        sum(2 * one.get("batch", 1) * one["m"] * one["k"] * one["n"] * one.get("count", 1) for one in row["work"])
    )


def _errors(kernels: Kernels, rows: Iterable[Row], bend: float = 0.1) -> list[float]:
    """The error of each row's logarithm; beyond 10 % it grows as its root, so that no outlier rules."""
    out = []
    for row in rows:
        off = log(_predicted(kernels, row) / float(row["time"]))
        out.append(off if abs(off) < bend else copysign((2 * bend * abs(off) - bend**2) ** 0.5, off))
    return out


def search(function: Callable[[Sequence[float]], Sequence[float]], start: Sequence[float]) -> list[float]:
    """Positive numbers that make the squares of a function's results small (Levenberg and Marquardt), in logarithms.

    >>> [round(x, 2) for x in search(lambda x: [x[0] * x[1] - 6, x[0] - 2], [1.0, 1.0])]
    [2.0, 3.0]
    """

    def results(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array(function([float(number) for number in np.exp(logarithms)]), np.float64)

    x, damping = np.log(np.array(start, np.float64)), 1e-2
    values = results(x)
    for _ in range(60):
        step = 2e-3
        slopes = np.stack([(results(x + step * one) - values) / step for one in np.eye(len(x))], 1)
        square, downhill = slopes.T @ slopes, slopes.T @ values
        before = values @ values
        while damping < 1e6:
            scale = np.diag(np.maximum(np.diag(square), 1e-6))
            move = np.clip(np.linalg.solve(square + damping * scale, -downhill), -1.0, 1.0)
            tried = results(x + move)
            if tried @ tried < before:
                x, values, damping = x + move, tried, max(damping / 5, 1e-9)
                break
            damping *= 4
        else:
            break
        if before - values @ values < 1e-9 * before:
            break
    return [float(value) for value in np.exp(x)]
