"""Random kernels of several parts, right by construction, and the mistakes that can be made in each of them.

A kernel changes an accumulator part by part: blocks fetched ahead, sums round a ring, exchanges, pipelines. Each
synchronization, slot, neighbour and store is a numbered step, which a mistake leaves out, changes or makes late. The
same text runs in JAX's Pallas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

ROWS, SHAPE = 4, (8, 128)
NEEDED = {"start", "wait", "signal"}  # without one of them nothing can be right


class Part(NamedTuple):
    """A part of a kernel: its kind, and the numbers it is made with."""

    kind: str
    numbers: tuple[int, ...]


class Plan(NamedTuple):
    devices: int
    steps: int  # of the grid
    parts: tuple[Part, ...]
    halves: bool  # whether the result is stored in two

    @property
    def sends(self) -> bool:
        return any(part.kind in REMOTE for part in self.parts)


class Mistake(NamedTuple):
    """What is done wrong: ``drop``, ``change`` or ``late`` at a step, of a kind; or ``unmet``, at a barrier."""

    how: str
    step: int
    kind: str


REMOTE = ("ring", "exchange", "everywhere")
LOCAL = ("fetch", "scoped", "parity", "pipeline")


def plan(seed: int) -> Plan:
    """A kernel that is right."""
    draw = np.random.default_rng(seed)
    devices = int(draw.choice([1, 2, 2, 3, 4, 4, 5, 8]))
    kinds = [*LOCAL, *REMOTE, *REMOTE] if devices > 1 else list(LOCAL)
    parts: list[Part] = []
    for kind in draw.choice(kinds, size=int(draw.integers(1, 4 if devices < 8 else 3))).tolist():
        if kind == "ring":
            again = any(part.kind == "ring" for part in parts)
            parts.append(Part(kind, (int(draw.integers(1, devices + 1)), int(draw.integers(2)), int(again))))
        elif kind == "exchange":
            parts.append(Part(kind, (int(draw.integers(1, devices)),)))
        elif kind == "fetch":
            parts.append(Part(kind, tuple(int(n) for n in draw.integers(0, ROWS, size=int(draw.integers(1, 5))))))
        else:
            parts.append(Part(kind, (int(draw.integers(0, ROWS)),)))
    remote = any(part.kind in REMOTE for part in parts)
    return Plan(devices, 1 if remote else int(draw.integers(1, 4)), tuple(parts), bool(draw.integers(2)))


def operands(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Small whole numbers for every device: rows to fetch, and a block for each step of the grid."""
    draw = np.random.default_rng(len(plan.parts))
    shapes = (plan.devices, ROWS, *SHAPE), (plan.devices, plan.steps, *SHAPE)
    x, w = (draw.integers(-4, 5, size=shape).astype(np.float32) for shape in shapes)
    return x, w


def expected(plan: Plan) -> np.ndarray:
    """The results of all devices, computed by what each part means."""
    x, w = operands(plan)
    acc = w.copy()
    devices = np.arange(plan.devices)
    for kind, numbers in plan.parts:
        if kind == "fetch":
            for row in numbers:
                acc = acc + x[:, None, row]
        elif kind == "scoped":
            acc = acc - x[:, None, numbers[0]]
        elif kind == "parity":
            acc = acc + np.where(devices % 2 == 0, 1, 2 + numbers[0])[:, None, None, None]
        elif kind == "pipeline":
            acc = acc + 3 * x[:, None, numbers[0]] + 1
        elif kind == "ring":
            hops, sums, _ = numbers
            came = [np.roll(acc, hop, axis=0) for hop in range(1, hops + 1)]
            acc = acc + sum(came) if sums else came[-1]
        elif kind == "exchange":
            acc = acc + np.roll(acc, numbers[0], axis=0)
        else:
            acc = np.broadcast_to(acc.sum(axis=0), acc.shape)
    return acc


class Steps:
    """The numbered steps of a kernel while it is run, or traced, on one device."""

    def __init__(self, mistake: Mistake | None) -> None:
        self.mistake = mistake
        self.kinds: list[str] = []  # of the steps so far
        self.held: Callable[[], None] | None = None
        self.barriers = 0

    def meets(self) -> bool:
        """Whether the next barrier is made."""
        self.barriers += 1
        return self.mistake is None or self.mistake[:2] != ("unmet", self.barriers - 1)

    def _next(self, kind: str) -> str:
        """What is done wrong in the next step."""
        self.kinds.append(kind)
        mistake = self.mistake
        return mistake.how if mistake is not None and mistake.step == len(self.kinds) - 1 else ""

    def do(self, kind: str, action: Callable[[], Any]) -> None:
        how = self._next(kind)
        if how == "late":
            self.held = action
            return
        if how != "drop":
            action()
        if self.held is not None:
            self.held, held = None, self.held
            held()

    def choose(self, kind: str, right: Any, wrong: Any) -> Any:
        return wrong if self._next(kind) == "change" else right


def build(k: Any, plan: Plan, mistake: Mistake | None = None, seen: list[Steps] | None = None) -> Any:
    """The kernel of a plan as a function of the operands of one device."""
    n, f32 = plan.devices, np.float32
    dma, regular = k.pltpu.SemaphoreType.DMA, k.pltpu.SemaphoreType.REGULAR
    block = k.pltpu.VMEM(SHAPE, f32)
    two = k.pltpu.VMEM((2, *SHAPE), f32)
    memory: dict[str, Any] = {"acc": block}
    for at, part in enumerate(plan.parts):
        if part.kind == "fetch":
            memory |= {f"two{at}": two, f"sem{at}": dma((2,))}
        elif part.kind == "ring" and not part.numbers[2]:
            memory |= {"ring": two, "ring_send": dma, "ring_receive": dma((2,)), "room": regular}
        elif part.kind == "ring":
            memory |= {f"again{at}": regular}
        elif part.kind == "exchange":
            memory |= {f"two{at}": two, f"sem{at}": dma((2,))}
        elif part.kind == "everywhere":
            memory |= {f"all{at}": k.pltpu.VMEM((n, *SHAPE), f32), f"send{at}": dma, f"receive{at}": dma}
        elif part.kind == "pipeline":
            memory |= {f"two{at}": two, f"sem{at}": dma((2,))}

    def kernel(x_ref: Any, w_ref: Any, out_ref: Any, made_ref: Any, **refs: Any) -> None:
        steps = Steps(mistake)
        if seen is not None:
            seen.append(steps)
        acc = refs["acc"]
        me = k.lax.axis_index("x") if n > 1 else 0
        to = lambda device: {"device_id": (device,), "device_id_type": k.pl.DeviceIdType.MESH}

        def near(shift: int) -> Any:
            right = k.lax.rem(me + shift + n, n)
            return steps.choose("neighbor", right, k.np.where(me == 0, k.lax.rem(right + 1, n), right))

        def store(ref: Any, index: Any, value: Any) -> Callable[[], None]:
            return lambda: ref.__setitem__(index, value)

        def add(ref: Any, index: Any) -> Callable[[], None]:
            return lambda: acc.__setitem__(..., acc[...] + ref[index])

        def meet(semaphore: Any) -> None:
            if not steps.meets():
                return
            for shift in (-1, 1):
                device = near(shift)
                steps.do("signal", lambda device=device: k.pl.semaphore_signal(semaphore, 1, **to(device)))
            steps.do("wait", lambda: k.pl.semaphore_wait(semaphore, 2))

        def fetch(at: int, rows: tuple[int, ...]) -> None:
            slots, sem = refs[f"two{at}"], refs[f"sem{at}"]
            copies = [
                k.pltpu.make_async_copy(x_ref.at[row], slots.at[steps.choose("slot", i % 2, 1 - i % 2)], sem.at[i % 2])
                for i, row in enumerate(rows)
            ]
            steps.do("start", copies[0].start)
            for i, copy in enumerate(copies):
                if i + 1 < len(rows):
                    steps.do("start", copies[i + 1].start)
                steps.do("wait", copy.wait)
                steps.do("add", add(slots, steps.choose("slot", i % 2, 1 - i % 2)))

        def scoped(row: int) -> None:
            def inside(room: Any, sem: Any) -> None:
                copy = k.pltpu.make_async_copy(x_ref.at[row], room, sem)
                steps.do("start", copy.start)
                steps.do("wait", copy.wait)
                acc[...] = acc[...] - room[...]

            k.pl.run_scoped(inside, block, dma)

        def parity(more: int) -> None:
            @k.pl.when(k.lax.rem(me, 2) == 0)
            def _() -> None:
                acc[...] = acc[...] + 1

            @k.pl.when(k.lax.rem(me, 2) == 1)
            def _() -> None:
                acc[...] = acc[...] + (2 + more)

        def pipeline(at: int, row: int) -> None:
            def body(given: Any, made: Any) -> None:
                steps.do("store", store(made, ..., given[...] * 3 + 1))

            spec = k.pl.BlockSpec((1, *SHAPE), lambda i: (i, 0, 0))
            k.pltpu.emit_pipeline(body, grid=(ROWS,), in_specs=[spec], out_specs=[spec])(x_ref, made_ref)
            slots, sem = refs[f"two{at}"], refs[f"sem{at}"]
            copy = k.pltpu.make_async_copy(made_ref.at[row], slots.at[0], sem.at[0])
            steps.do("start", copy.start)
            steps.do("wait", copy.wait)
            steps.do("add", add(slots, 0))

        def ring(at: int, hops: int, sums: int, again: int) -> None:
            slots, receive, room = refs["ring"], refs["ring_receive"], refs["room"]
            if again:
                meet(refs[f"again{at}"])
            steps.do("store", store(slots, 0, acc[...]))
            for hop in range(hops):
                slot = hop % 2
                if hop:
                    steps.do("wait", lambda: k.pl.semaphore_wait(room))
                copy = k.pltpu.make_async_remote_copy(
                    slots.at[steps.choose("slot", slot, 1 - slot)], slots.at[1 - slot], refs["ring_send"],
                    receive.at[slot], **to(near(1)),
                )  # fmt: skip
                steps.do("start", copy.start)
                steps.do("wait", copy.wait_send)
                steps.do("wait", copy.wait_recv)
                if sums:
                    steps.do("add", add(slots, 1 - slot))
                elif hop == hops - 1:
                    steps.do("store", lambda slot=slot: acc.__setitem__(..., slots[1 - slot]))
                if hop < hops - 1:
                    device = near(-1)
                    steps.do("signal", lambda device=device: k.pl.semaphore_signal(room, 1, **to(device)))

        def exchange(at: int, shift: int) -> None:
            slots, sem = refs[f"two{at}"], refs[f"sem{at}"]
            steps.do("store", store(slots, 0, acc[...]))
            copy = k.pltpu.make_async_remote_copy(slots.at[0], slots.at[1], sem.at[0], sem.at[1], **to(near(shift)))
            steps.do("start", copy.start)
            steps.do("wait", copy.wait_recv)
            steps.do("add", add(slots, steps.choose("slot", 1, 0)))
            steps.do("wait", copy.wait_send)

        def everywhere(at: int) -> None:
            rows, send, receive = refs[f"all{at}"], refs[f"send{at}"], refs[f"receive{at}"]
            steps.do("store", store(rows, me, acc[...]))
            copies = []
            for shift in range(1, n):
                copy = k.pltpu.make_async_remote_copy(rows.at[me], rows.at[me], send, receive, **to(near(shift)))
                steps.do("start", copy.start)
                copies.append(copy)
            for copy in copies:
                steps.do("wait", copy.wait_send)
                steps.do("wait", copy.wait_recv)
            steps.do("store", lambda: acc.__setitem__(..., rows[...].sum(axis=0)))

        if plan.sends and steps.meets():
            barrier = k.pl.get_barrier_semaphore() if hasattr(k.pl, "get_barrier_semaphore") else None
            barrier = k.pltpu.get_barrier_semaphore() if barrier is None else barrier
            others = [near(shift) for shift in range(1, n)]
            for device in others:
                steps.do("signal", lambda device=device: k.pl.semaphore_signal(barrier, 1, **to(device)))
            steps.do("wait", lambda: k.pl.semaphore_wait(barrier, n - 1))
        steps.do("store", store(acc, ..., w_ref[0]))
        for at, (kind, numbers) in enumerate(plan.parts):
            if kind == "fetch":
                fetch(at, numbers)
            elif kind == "everywhere":
                everywhere(at)
            elif kind in ("scoped", "parity"):
                {"scoped": scoped, "parity": parity}[kind](*numbers)
            else:
                {"pipeline": pipeline, "ring": ring, "exchange": exchange}[kind](at, *numbers)
        if plan.halves:
            steps.do("result", store(out_ref, (0, slice(0, 4)), acc[0:4]))
            steps.do("result", store(out_ref, (0, slice(4, 8)), acc[4:8]))
        else:
            steps.do("result", store(out_ref, 0, acc[...]))

    whole = k.pl.BlockSpec(memory_space=k.pl.ANY)
    each = k.pl.BlockSpec((1, *SHAPE), lambda i: (i, 0, 0))
    has_made = any(part.kind == "pipeline" for part in plan.parts)
    out = [k.struct((plan.steps, *SHAPE), f32), k.struct((ROWS, *SHAPE), f32)]

    def without(x_ref: Any, w_ref: Any, out_ref: Any, **refs: Any) -> None:
        kernel(x_ref, w_ref, out_ref, None, **refs)

    call = k.pl.pallas_call(
        kernel if has_made else without, out[: 1 + has_made], grid=(plan.steps,), in_specs=[whole, each],
        out_specs=[each, whole][: 1 + has_made], scratch_shapes=memory,
        compiler_params=k.pltpu.CompilerParams(collective_id=0 if plan.sends else None), **k.options,
    )  # fmt: skip
    return lambda x, w: call(x, w)[0]


def mistakes(steps: Steps) -> list[Mistake]:
    """Every mistake that can be made in a kernel with these steps."""
    found = [Mistake("unmet", n, "barrier") for n in range(steps.barriers)]
    kinds = steps.kinds
    for step, kind in enumerate(kinds):
        if kind in ("slot", "neighbor"):
            found.append(Mistake("change", step, kind))
            continue
        found.append(Mistake("drop", step, kind))
        if step + 1 < len(kinds) and kind in ("wait", "signal", "store", "add"):
            found.append(Mistake("late", step, kind))
    return found
