"""How long kernels and collectives take on a machine, and which of its parts they keep busy.

``mode="exact"`` is the roofline: a kernel takes the larger of its FLOPs over the chip's rate and its bytes over the
memory's bandwidth. ``mode="calibrated"`` uses what was measured: the kernel model of a chip that has one, else its
efficiencies. FLOPs of fused elementwise kernels do not count: memory bounds them. Collectives take what
``hardware.collective_cost`` says and keep the links of their axes busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from meshwright.core.axis_names import axis_part
from meshwright.core.dtypes import real_part
from meshwright.core.facts import Across, Fusion, Structure
from meshwright.core.op import No, fusion_of
from meshwright.core.program import Atom, Eqn, Literal, Program, Var
from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import dtype_name
from meshwright.hardware.collectives import collective_cost, shift_of
from meshwright.hardware.kernels import Kernels as Measured
from meshwright.hardware.machines import sizes_text
from meshwright.hardware.occupancy import occupancy
from meshwright.hardware.placement import DCN, Span
from meshwright.hardware.roofline import work
from meshwright.hardware.topology import Topology
from meshwright.partition.reshard.cost import spans_of_part
from meshwright.sharding.axes import AxisRef
from meshwright.simulate.attention import Attention
from meshwright.simulate.fusion import Kernel, is_row_reduction
from meshwright.simulate.visible import is_exponential

COMPUTE = "compute"
TO_HOST, FROM_HOST = "to host", "from host"  # the two directions of a chip's link to its host


class TaskCost(NamedTuple):
    """The cost of a fusion or collective: the parts of the machine it keeps busy, and for how long.

    ``matmul_flops`` are the FLOPs of matmuls alone, of a fused attention ``again_flops`` those that are computed a
    second time; ``axes`` are those that a collective works along; ``moved``
    is what a device receives in it. ``bound`` says what decides: "compute", "memory", "bandwidth" or "latency".
    """

    seconds: float
    units: tuple[str, ...]
    bound: str
    flops: float = 0.0
    nbytes: float = 0.0
    matmul_flops: float = 0.0
    axes: tuple[str, ...] = ()
    moved: float = 0.0
    dtype: str = ""
    again_flops: float | None = None


def whole_axes(axes: Mapping[str, int]) -> dict[str, int]:
    """The axes that parts such as ``x:(1)2``, ``x:(2)4`` are parts of, with their sizes."""
    found: dict[str, int] = {}
    for name, size in axes.items():
        part = axis_part(name)
        whole = part[0] if part else name
        found[whole] = found.get(whole, 1) * size
    return found


class Machine:
    """A topology, and what ops take on it. Answers are kept: a layer that comes again costs nothing to ask about."""

    def __init__(self, topology: Topology, axes: Mapping[str, int], mode: str = "exact") -> None:
        self.topology, self.axes, self.mode = self._with_parts(topology, axes), dict(axes), mode
        self.whole = topology
        self.chip = topology.chip
        work(0, 0, self.chip, mode=mode)  # refuses an unknown mode
        measured = mode == "calibrated" and "kernels" in self.chip.facts
        self.measured = Measured.of(self.chip) if measured else None
        self.notes: dict[str, None] = {}
        self.half_zero: set[Var] = set()
        self.known: dict[Atom, Any] = {}  # values that are known before the program runs
        self._collectives: dict[object, TaskCost] = {}
        self._kernels: dict[object, TaskCost] = {}

    @staticmethod
    def _with_parts(topology: Topology, axes: Mapping[str, int]) -> Topology:
        """The machine with parts of mesh axes as axes of their own, each where its whole lies."""
        if all(axis_part(name) is None for name in axes):
            return topology
        spans: dict[str, tuple[Span, ...]] = {}
        for name in axes:
            part = axis_part(name)
            if part is None:
                spans[name] = topology.mapping[name]
            else:
                whole, pre, size = part
                spans[name] = spans_of_part(topology.mapping[whole], AxisRef(whole, pre, size, topology.mesh[whole]))
        return Topology(topology.chip, topology.shape, mesh=dict(axes), mapping=spans, wrap=topology.wrap,
                        slices=topology.slices)  # fmt: skip

    # Kernels

    def kernel(self, kernel: Kernel) -> TaskCost:
        """The cost of a fusion."""
        eqn = kernel.eqns[-1]
        if kernel.attention is not None:
            return self._attention(kernel, kernel.attention)
        if kernel.alone:
            types = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outputs)
            nbytes = kernel.nbytes if len(kernel.eqns) > 1 else None
            dense = self.half_zero.isdisjoint(eqn.inputs)  # type: ignore[arg-type]
            given = tuple(id(self.known.get(a)) for a in eqn.inputs) if eqn.op.structure is Structure.KERNEL else ()
            key: object = (eqn.op, *types, tuple(eqn.params.items()), nbytes, dense, given)
            found = self._kernels.get(key)
            if found is None:
                if eqn.op.structure is Structure.KERNEL:
                    found = self.written(eqn)[0]
                elif eqn.op.structure in (Structure.OFFLOAD, Structure.RELOAD):
                    found = self._transfer(eqn)
                else:
                    product = fusion_of(eqn) is Fusion.CONTRACTION
                    found = self._matmul(eqn, nbytes, dense) if product else self._other(eqn)
                self._kernels[key] = found
            return found
        return self._fused(kernel)

    def _work(self, flops: float, nbytes: float, dtype: str, matmul_flops: float) -> TaskCost:
        cost = work(flops, nbytes, self.chip, dtype, self.mode)
        return TaskCost(cost.seconds, (COMPUTE,), cost.bound, flops, nbytes, matmul_flops, dtype=dtype)

    def _dtype(self, eqn: Eqn) -> str:
        """The dtype at whose rate an equation computes, complex numbers at that of their parts; what is left out of
        products is computed as f32 is."""
        name = dtype_name(real_part(eqn.inputs[0].type.dtype)) if eqn.inputs else "f32"
        try:
            self.chip.flops_per_s(name)
        except HardwareError:
            stand_in = "int8" if name.startswith(("i", "u")) and name.endswith("8") else "f32"
            if fusion_of(eqn) is Fusion.CONTRACTION:
                self.notes[f"products of {name} are taken to run at the rate of {stand_in}"] = None
            return stand_in
        return name

    def _matmul(self, eqn: Eqn, nbytes: float | None, dense: bool) -> TaskCost:
        """A contraction, which reads and writes ``nbytes`` if it computes operands as it reads them."""
        cost = eqn.op.cost([a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params)
        dtype, nbytes = self._dtype(eqn), cost.nbytes if nbytes is None else float(nbytes)
        found = self._work(cost.flops, nbytes, dtype, cost.flops)
        if self.measured is None or dtype not in self.measured.flops_per_s:
            return found
        batch, m, k, n, kind, window = _matmul_sizes(eqn, cost.flops)
        options: dict[str, Any] = {"window": window, "dense": dense}
        return found._replace(seconds=self.measured.product(m, k, n, dtype, batch, nbytes, kind, **options))

    def _attention(self, kernel: Kernel, attention: Attention) -> TaskCost:
        """Fused attention: the FLOPs of its products, as far as masks leave them, and bytes of what is not wide."""
        products, others, powers, again, dtype = 0.0, 0.0, 0.0, 0.0, ""
        for eqn in kernel.eqns:
            cost = eqn.op.cost([a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params)
            kind = fusion_of(eqn)
            if kind is Fusion.CONTRACTION:
                products += attention.visible * cost.flops
                again += attention.visible * cost.flops if eqn.source is not None and eqn.source.again else 0.0
                dtype = dtype or self._dtype(eqn)
            else:
                others += attention.visible * cost.flops
                powers += attention.visible * eqn.outputs[0].type.size if is_exponential(eqn, kind) else 0.0
        found = self._work(products, float(kernel.nbytes), dtype, products)
        found = found._replace(flops=products + others, again_flops=again)
        if self.measured is None or dtype not in self.measured.flops_per_s:
            return found
        scores = next(eqn for eqn in kernel.eqns if fusion_of(eqn) is Fusion.CONTRACTION)
        rows = max((eqn.outputs[0].type.size for eqn in kernel.eqns if fusion_of(eqn) is Fusion.REDUCTION), default=0)
        batch = _matmul_sizes(scores, 0.0)[0]
        work = {"kind": "attention", "flops": products, "exponentials": powers, "bytes": kernel.nbytes, "dtype": dtype,
                "batch": batch, "queries": max(1, rows // batch)}  # fmt: skip
        return found._replace(seconds=min(self.measured.kernel_seconds(work), self._apart(kernel, self.measured)))

    def _apart(self, kernel: Kernel, measured: Measured) -> float:
        """The least time of attention as separate kernels, as which it runs where that is shorter: its products, and
        scores read and written between them by a kernel that another one may be part of."""
        products = [eqn for eqn in kernel.eqns if fusion_of(eqn) is Fusion.CONTRACTION]
        scores = max((eqn.outputs[0].type for eqn in products), key=lambda found: found.size)
        softmax = measured.moving("normalize", 2 * scores.nbytes, scores.size) - measured.launch_seconds
        return softmax + sum(self._matmul(eqn, None, True).seconds for eqn in products)

    def products_seconds(self, kernel: Kernel) -> float:
        """How long the contractions of a fused attention take, each as a kernel that reads and writes its operands."""
        products = [eqn for eqn in kernel.eqns if fusion_of(eqn) is Fusion.CONTRACTION]
        return sum(self._matmul(eqn, None, False).seconds for eqn in products)

    def _transfer(self, eqn: Eqn) -> TaskCost:
        """A value on its way to the memory of the host, or back: the link is busy that way, the chip is not."""
        unit = TO_HOST if eqn.op.structure is Structure.OFFLOAD else FROM_HOST
        nbytes = float(eqn.outputs[0].type.nbytes)
        return TaskCost(nbytes / self.chip.memory_bytes_per_s("pcie"), (unit,), "host link", nbytes=nbytes)

    def _other(self, eqn: Eqn) -> TaskCost:
        """Scatters, sorts, windows: their own count of work."""
        cost = eqn.op.cost([a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params)
        if self.measured is not None:
            kind = "scatter" if eqn.op.split.across is Across.WRITTEN else "stream"
            elements = float(eqn.outputs[0].type.size)
            seconds = self.measured.moving(kind, cost.nbytes, elements)
            return TaskCost(seconds, (COMPUTE,), "memory", cost.flops, cost.nbytes)
        return self._work(cost.flops, cost.nbytes, "f32", 0.0)

    def written(self, eqn: Eqn) -> tuple[TaskCost, Any]:
        """What a kernel written by hand takes, and its timeline: it is run on a clock, without its numbers."""
        mesh, rows = dict(eqn.params["mesh"]), eqn.params["rows"]
        types = [a.type.with_(shape=a.type.shape[len(rows) :]) for a in eqn.inputs[len(mesh) :]]
        topology = self._with_parts(self.whole, mesh)  # the axes that it was written for, however the mesh is cut
        known = {n: self.known.get(a) for n, a in enumerate(eqn.inputs[len(mesh) :])} if not rows else {}
        found = eqn.params["kernel"].function.timeline(mesh, types, topology, known)
        times = prod(size for name, size in rows if not name)
        axes = tuple(axis for axis, size in mesh.items() if size > 1)
        cost = TaskCost(times * found.seconds, (COMPUTE, *self.links(axes, topology)), "compute", times * found.flops,
                    times * found.nbytes, times * found.flops, dtype=self._dtype(eqn))  # fmt: skip
        return cost, found

    def _fused(self, kernel: Kernel) -> TaskCost:
        flops = 0.0
        for eqn in kernel.eqns:
            flops += eqn.op.cost([a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params).flops
        nbytes = float(kernel.nbytes)
        if self.measured is None:
            seconds = work(0, nbytes, self.chip, mode=self.mode).seconds
        else:
            seconds = sum(map(self.measured.kernel_seconds, _moving(kernel)))
        return TaskCost(seconds, (COMPUTE,), "memory", flops, nbytes)

    # Collectives

    def collective(self, eqn: Eqn) -> TaskCost:
        """The cost of a collective."""
        operands, results = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outputs)
        name, axes = eqn.op.name, eqn.params["axes"]
        permutation = eqn.params.get("permutation")
        key = (name, operands, results, axes, None if permutation is None else id(permutation))
        found = self._collectives.get(key)
        if found is None:
            found = self._collectives[key] = self._collective(eqn)
        return found

    def _collective(self, eqn: Eqn) -> TaskCost:
        held, got = sum(a.type.nbytes for a in eqn.inputs), sum(v.type.nbytes for v in eqn.outputs)
        name, axes = eqn.op.name, tuple(eqn.params["axes"])
        missing = [axis for axis in axes if axis not in self.axes]
        if missing:
            raise HardwareError(
                f"The program talks along the axis {missing[0]!r}, and the mesh is {sizes_text(self.axes) or 'empty'}.",
                where=eqn.source.show() if eqn.source else here(),
                why="a local program does not say how large its mesh is",
                fix=f"mw.simulate(program, topology, mesh_axes={{{missing[0]!r}: …}})",
            )
        sizes = tuple(self.axes[axis] for axis in axes)
        given = eqn.params.get("sizes")
        if given is not None and tuple(given) != sizes:
            raise HardwareError(
                f"The program is written for {sizes_text(dict(zip(axes, given, strict=True)))}, "
                f"the mesh is {sizes_text(self.axes)}.",
                where=eqn.source.show() if eqn.source else here(),
                why=f"its {name} has a result of another shape on another mesh",
                fix=f"mesh_axes={dict(zip(axes, given, strict=True))}",
            )
        group, kind = prod(sizes), str(eqn.op.collective)
        size = {"all_gather": got, "all_to_all": group * held, "permute": group * held}
        options: dict[str, Any] = {"shift": shift_of(eqn.params["permutation"], sizes)} if kind == "permute" else {}
        volume = size.get(kind, held)
        cost = collective_cost(kind, volume, self.topology, axes, self.mode, **options)
        others = (group - 1) / group
        moved = {
            "all_gather": others * got,
            "reduce_scatter": others * held,
            "all_reduce": 2 * others * held,
            "all_to_all": others * held,
        }.get(kind, float(held) if group > 1 else 0.0)
        flops = float(sum(a.type.size for a in eqn.inputs)) if kind in ("all_reduce", "reduce_scatter") else 0.0
        return TaskCost(cost.seconds, self.links(axes), cost.bound, flops, 0.0, axes=axes, moved=moved)

    def links(self, axes: tuple[str, ...], topology: Topology | None = None) -> tuple[str, ...]:
        """The networks that a collective along mesh axes keeps busy: links of a torus by axis, NVLink, the network."""
        topology = topology or self.topology
        spans = [span for span in topology.spans(axes) if span.size > 1]
        if not topology.switched:
            return tuple(dict.fromkeys("dcn" if s.axis == DCN else f"links {s.axis}" for s in spans))
        groups = occupancy(topology, tuple(spans)).groups if spans else ()
        busy = {"nvlink": any(g.most > 1 for g in groups), "network": any(g.nodes > 1 for g in groups)}
        return tuple(name for name, used in busy.items() if used)

    def lying_on(self, unit: str) -> tuple[str, ...]:
        """The mesh axes that use a network."""
        return tuple(name for name in self.axes if self.axes[name] > 1 and unit in self.links((name,)))


def half_zero(program: Program) -> set[Var]:
    """The values about half of whose elements are zero: results of relus and masks, and the same in other words.

    p: bool[8] = le o 0.0
    q: bf16[8] = select p 0.0 o        q, and what is a cast, a view or a transpose of it
    """
    found: set[Var] = set()
    for eqn in program.eqns:
        chosen = {"select": eqn.inputs[1:], "max": eqn.inputs}.get(eqn.op.name, ())
        made = any(isinstance(atom, Literal) and not np.any(atom.value) for atom in chosen)
        same = fusion_of(eqn) in (Fusion.VIEW, Fusion.PERMUTATION) or eqn.op.name == "convert"
        if made or (same and eqn.inputs[0] in found):
            found.update(eqn.outputs)
    return found


def _matmul_sizes(eqn: Eqn, flops: float) -> tuple[int, int, int, int, str, int]:
    """The batch and the three sizes of the product that an equation amounts to, what kind it is, and its window."""
    operands, results = [a.type for a in eqn.inputs], [v.type for v in eqn.outputs]
    if "dims" not in eqn.params:
        assert not isinstance(eqn.op.factors, No)
        rule = eqn.op.factors(operands, results, eqn.params)
        left, right, out = ({name for dim in dims for name in dim} for dims in (*rule.operands[:2], rule.results[0]))
        found = (left & right & out, left - right, (left & right) - out, right - left)
        b, m, k, n = (max(1, prod(rule.sizes[name] for name in names)) for names in found)
        return b, m, k, n, "matmul", 1
    # A convolution: positions by what each is computed from by features. The gradient of a filter has few positions,
    # each computed from a whole array.
    _, kernel, result = eqn.params["dims"]
    features = results[0].shape[result[1]]
    k = max(1, round(flops / 2 / max(1, results[0].size)))
    places = ((operands[1], kernel), (results[0], result))
    window, positions = (prod(t.shape[d] for d in dims[2:]) for t, dims in places)
    m = max(1, results[0].size // features)
    if positions < window:
        return positions, max(1, m // positions), k, features, "conv_filter_grad", positions
    return 1, m, k, features, "conv", window


def _moving(kernel: Kernel) -> list[dict[str, object]]:
    """A fused kernel in the words of the measured model: one kernel, or two if rows are reduced twice side by side."""
    reductions = [eqn for eqn in kernel.eqns if fusion_of(eqn) is Fusion.REDUCTION]
    written = sum(v.type.nbytes for v in kernel.writes)
    read = sum(kernel.reads.values())
    touched = [kernel.reads[v] // v.type.dtype.itemsize for v in kernel.reads]
    elements = max([v.type.size for v in kernel.writes] + touched, default=0)
    widest = max((v.type.size for v in kernel.writes), default=0)
    rows = [eqn for eqn in reductions if is_row_reduction(eqn) and eqn.outputs[0] not in kernel.writes
            and eqn.outputs[0].type.size < widest]  # fmt: skip
    sizes: dict[str, object] = {"read": read, "written": written, "elements": elements}
    if _side_by_side(kernel, rows):
        sums = sum(eqn.outputs[0].type.nbytes for eqn in rows)
        return [{"kind": "reduce", "read": read, "written": sums, "elements": elements}, {"kind": "stream", **sizes}]
    if rows:
        row = max(4 * eqn.inputs[0].type.size / max(1, eqn.outputs[0].type.size) for eqn in rows)
        return [{"kind": "normalize", **sizes, "row": row, "passes": len(rows)}]
    kind = "stream"
    if reductions:
        kind = "reduce" if all(map(_keeps_leading, reductions)) else "column_reduce"
        if kind == "column_reduce":
            sizes["row"] = max(eqn.inputs[0].type.size // max(1, eqn.outputs[0].type.size) for eqn in reductions)
        last = kernel.eqns.index(reductions[-1])
        if any(eqn.op.name != "convert" for eqn in kernel.eqns[last + 1 :]):  # arithmetic on sums: a pass of its own
            return [{"kind": kind, **sizes}, {"kind": "stream", "read": written, "written": written}]
    elif permuted := [eqn.outputs[0].type for eqn in kernel.eqns if fusion_of(eqn) is Fusion.PERMUTATION]:
        kind = "transpose"
        sizes["row"] = permuted[-1].shape[-1] * permuted[-1].dtype.itemsize
    elif any(eqn.op.split.across is Across.READ for eqn in kernel.eqns):
        kind = "gather"
        sizes["read"] = max(read, written)  # rows that are read again are not in a cache any more
    return [{"kind": kind, **sizes}]


def _keeps_leading(eqn: Eqn) -> bool:
    """Whether a reduction is over trailing dims, or over all."""
    axes, rank = eqn.params.get("axes", ()), eqn.inputs[0].type.ndim
    return sorted(axes) == list(range(rank - len(axes), rank))


def _side_by_side(kernel: Kernel, reductions: Sequence[Eqn]) -> bool:
    """Whether two of a kernel's reductions do not wait for each other: compilers do not keep rows on the chip then."""
    if len(reductions) < 2:
        return False
    after: dict[object, int] = dict.fromkeys(kernel.reads, 0)  # reductions one after another before a value
    depths: set[int] = set()
    ours = {id(eqn) for eqn in reductions}
    for eqn in kernel.eqns:
        views = [atom.__class__ is Var and atom not in after for atom in eqn.inputs]  # of what was reduced last
        depth = max((len(depths) if view else after.get(atom, 0) for atom, view in zip(eqn.inputs, views)), default=0)
        if id(eqn) in ours:
            if depth in depths:
                return True
            depths.add(depth)
            depth += 1
        after.update((v, depth) for v in eqn.outputs)
    return False
