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
from meshwright.hardware.chips import Chip, Fact, get
from meshwright.hardware.kernels import CONVOLUTIONS, MOVING, Kernels
from meshwright.hardware.measurements import MEASURE

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

    Memory and products are fitted together, then the share of their rates that each other kind of kernel reaches, to
    the cases that show it.
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
    rates = {dtype: max(_flops(row) / row["time"] for row in products if _types(row) == {dtype}) for dtype in types}
    call = min(calls, default=0.0)

    def numbers(x: Sequence[float]) -> Kernels:
        start, launch, memory, elements, fill, operands, *rest = x
        n = len(types)
        rate, edge, sustained, ramp, reduce, store = (dict(zip(types, rest[i : i + n])) for i in range(0, 6 * n, n))
        found = Kernels(units, tiled, call, start, launch, memory, elements, fill, rate, edge, {"operands": operands})
        if not tiled:
            return found
        return replace(found, store_bytes_per_s=store, sustained_flops_per_s=sustained, ramp_seconds=ramp,
                       reduce_seconds=reduce)  # fmt: skip

    first = [3e-6, 1.5e-6, fastest, busiest or 1e30, 5e-7, 0.9]
    for share, number in ((1.3, 0.0), (0.0, 10.0), (1.1, 0.0), (0.0, 5e-7), (0.0, 2e-6), (0.0, 5e10)):
        first += [share * rates[dtype] + number for dtype in types]
    found = numbers(search(lambda x: _errors(numbers(x), [*streams, *products]), first))
    for kind in MOVING[1:]:
        also = "matmul" if kind == "normalize" else ""  # attention of separate kernels
        found = _with_share(found, kind, [row for row in rows if _shows(row, kind, also)])
    for kind in CONVOLUTIONS:
        found = _with_convolution(found, kind, [row for row in rows if _shows(row, kind)])
    return _with_attention(found, [row for row in rows if _shows(row, "attention")])


def _with_share(kernels: Kernels, kind: str, rows: Sequence[Row]) -> Kernels:
    """The numbers with the share of the bandwidth that kernels of a kind reach, if any row shows it."""

    def shared(x: Sequence[float]) -> Kernels:
        found = replace(kernels, share={**kernels.share, kind: x[0]})
        if kind != "normalize":
            return found
        return replace(found, row_bytes=x[1], row_elements_per_s=x[2], row_bytes_per_s=x[3])

    first = [1.0, kernels.row_bytes, 2 * kernels.elements_per_s, 2e10] if kind == "normalize" else [1.0]
    return shared(search(lambda x: _errors(shared(x), rows), first)) if rows else kernels


def _with_convolution(kernels: Kernels, kind: str, rows: Sequence[Row]) -> Kernels:
    """The numbers with the share of the rate that convolutions of a kind reach, and how long the host calls one."""

    def shared(x: Sequence[float]) -> Kernels:
        called = {**kernels.library_seconds, kind: x[1]} if kernels.tiled else {}
        return replace(kernels, share={**kernels.share, kind: x[0]}, library_seconds=called)

    first = [1.0, 0.8 * min((row["time"] for row in rows), default=0.0)]
    return shared(search(lambda x: _errors(shared(x), rows), first)) if rows else kernels


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


def _types(row: Row) -> set[str]:
    return {one["dtype"] for one in row["work"]}


def _flops(row: Row) -> float:
    return float(
        sum(2 * one.get("batch", 1) * one["m"] * one["k"] * one["n"] * one.get("count", 1) for one in row["work"])
    )


def _errors(kernels: Kernels, rows: Iterable[Row]) -> list[float]:
    """The error of each row's logarithm; beyond 10 % it grows as its root, so that no outlier rules."""
    out = []
    for row in rows:
        off = log(_predicted(kernels, row) / float(row["time"]))
        out.append(off if abs(off) < 0.1 else copysign((0.2 * abs(off) - 0.01) ** 0.5, off))
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
