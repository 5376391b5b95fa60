"""How chips are joined: rings, lines and tori of links, NVLink domains under a fat tree, hosts, the data-center
network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import Chip, get
from meshwright.hardware.placement import DCN, Span, merged, place
from meshwright.sharding.text_sdy import read_integer

Axes = str | int | Iterable[str | int] | None


class NetworkLevel(NamedTuple):
    """A level of a switched network: blocks of ``size`` chips, each with ``bytes_per_s`` to the rest."""

    name: str
    size: int
    bytes_per_s: float
    hop_seconds: float


class Topology:
    """Chips of one kind in a shape, and where the axes of a mesh lie on it.

    ``shape`` is a tuple, text such as ``"4x4x4"``, a dict that names its axes, or a count: of TPUs those of a slice
    that there is, ``Topology("tpu v5e", 64)`` being 8x8, or with ``wrap`` a single axis. TPUs stand in a torus: an
    axis of a 2-D chip wraps around if it has the pod's full length, the axes of a 3-D chip if all are multiples of
    4; ``wrap`` overrides this. GPUs stand in NVLink domains with a fat tree above. ``slices`` joins several such
    machines by the data-center network. ``mesh`` is laid on the machine by `place`, or by hand with ``mapping={"x":
    0, "y": (1, 2)}``.

    >>> t = Topology("tpu v5e", (8, 16), mesh={"x": 8, "y": 16})
    >>> t
    Topology('tpu v5e', 8x16, wrap=1, mesh x=8 y=16)
    >>> t.size, t.hosts, t.wrap
    (128, 16, (False, True))
    >>> Topology("h100", 256).nodes
    32
    """

    def __init__(
        self,
        chip: str | Chip,
        shape: int | str | Sequence[int] | Mapping[str, int],
        *,
        mesh: object = None,
        mapping: Mapping[str, Any] | None = None,
        wrap: bool | Sequence[bool] | None = None,
        slices: int = 1,
    ) -> None:
        self.chip = get(chip)
        self.shape = _shape(self.chip, shape)
        if len(self.shape) == 1 and isinstance(shape, int | str) and wrap is None:
            self.shape = slice_shape(self.chip, self.shape[0])
        self.slices = _count(slices, "slices")
        self.switched = self.chip.kind == "gpu"
        self.wrap = self._wrap(wrap)
        self._check_possible()
        if mesh is None and isinstance(shape, Mapping):
            mesh, mapping = dict(shape), mapping or {name: axis for axis, name in enumerate(shape)}
        self.mesh = mesh_sizes(mesh) if mesh is not None else {}
        self.mapping = self._map(mapping)

    @property
    def size(self) -> int:
        """The number of chips."""
        return prod(self.shape) * self.slices

    @property
    def text(self) -> str:
        """``tpu v5e 4x4``."""
        slices = f"{self.slices} slices of " if self.slices > 1 else ""
        return f"{slices}{self.chip.name} {'x'.join(map(str, self.shape))}"

    def __repr__(self) -> str:
        parts = [repr(self.chip.name), "x".join(map(str, self.shape))]
        if any(self.wrap):
            parts.append("wrap=" + ",".join(str(axis) for axis, wraps in enumerate(self.wrap) if wraps))
        if self.slices > 1:
            parts.append(f"slices={self.slices}")
        if self.mesh:
            parts.append("mesh " + " ".join(f"{name}={size}" for name, size in self.mesh.items()))
        return f"Topology({', '.join(parts)})"

    # What the machine has as a whole.

    @property
    def hosts(self) -> int:
        """CPU hosts.

        >>> Topology("tpu v5e", (16, 16)).hosts
        32
        """
        per_host = self.node_size if self.switched else self.chip.chips_per_host
        return -(-self.size // int(per_host))

    @property
    def node_size(self) -> int:
        """GPUs in one NVLink domain; a slice has domains of its own."""
        domain = int(self.chip.nvlink_domain)
        return min(domain, prod(self.shape)) if self.slices > 1 else domain

    @property
    def nodes(self) -> int:
        """NVLink domains."""
        return -(-self.size // self.node_size)

    def flops_per_s(self, dtype: object = "bf16") -> float:
        """Peak rate of all chips.

        >>> Topology("tpu v5e", (16, 16)).flops_per_s("bf16")
        5.0432e+16
        """
        return self.size * self.chip.flops_per_s(dtype)

    @property
    def hbm_bytes(self) -> float:
        """Memory of all chips."""
        return self.size * self.chip.hbm_bytes

    def memory_bytes_per_s(self, memory: str = "hbm") -> float:
        """Memory bandwidth of all chips."""
        return self.size * self.chip.memory_bytes_per_s(memory)

    @property
    def egress_bytes_per_s(self) -> float:
        """All that the chips can send at once over their links.

        >>> Topology("tpu v4", (16, 16, 16)).egress_bytes_per_s
        1105920000000000.0
        """
        if self.switched:
            return self.size * self.chip.nvlink_bytes_per_s
        links = sum(2 * (length if wraps else length - 1) * prod(self.shape) // length
                    for length, wraps in zip(self.shape, self.wrap))  # fmt: skip
        return self.slices * links * self.chip.link_bytes_per_s

    @property
    def node_egress_bytes_per_s(self) -> float:
        """What one NVLink domain can send into the tree above it.

        >>> Topology("gb200", 72).node_egress_bytes_per_s
        3600000000000.0
        """
        return self.chip.node_bytes_per_s

    @property
    def bisection_bytes_per_s(self) -> float:
        """What can cross the worst cut into two halves, one way.

        >>> Topology("tpu v3", (32, 32)).bisection_bytes_per_s
        6400000000000.0
        """
        if self.switched:
            blocks = self.levels[-1]
            return max(1, -(-self.size // blocks.size) // 2) * blocks.bytes_per_s
        cuts = [
            (2 if wraps else 1) * prod(self.shape) // length
            for length, wraps in zip(self.shape, self.wrap)
            if length > 1
        ]
        return min(cuts, default=0) * self.chip.link_bytes_per_s

    @cached_property
    def levels(self) -> tuple[NetworkLevel, ...]:
        """The levels of a switched network that this machine has, from the GPU up."""
        chip = self.chip
        out = [NetworkLevel("gpu", 1, chip.nvlink_bytes_per_s, chip.nvlink_hop_seconds)]
        if self.nodes > 1:
            rate = chip.node_bytes_per_s * self.node_size / chip.nvlink_domain
            out.append(NetworkLevel("node", self.node_size, rate, chip.net_hop_seconds))
        unit = self.node_size * int(chip.known("nodes_per_unit", 0))
        if unit and self.size > unit:
            out.append(NetworkLevel("unit", unit, chip.unit_bytes_per_s, chip.net_hop_seconds))
        return tuple(out)

    @cached_property
    def at_measured_rates(self) -> Topology:
        """The same machine with the shares of their bandwidth that links and networks reach with large messages.

        >>> Topology("h100", 16).at_measured_rates.levels[1].bytes_per_s
        360000000000.0
        """
        facts = self.chip.facts
        shares = {rate: self.chip.known(f"{of}_efficiency", 1.0) for of, rates in _MEASURED.items() for rate in rates}
        slower = {rate: facts[rate].value * share for rate, share in shares.items() if rate in facts}
        found = copy(self)
        found.chip = self.chip.replace(**slower)
        found.__dict__.pop("levels", None)
        return found

    # From chip to chip.

    def hops(self, source: Sequence[int], target: Sequence[int]) -> int:
        """Links on a shortest way from one chip to another.

        >>> Topology("tpu v5e", (4, 4)).hops((0, 0), (3, 3))
        6
        """
        return sum(self._distances(source, target))

    def ports(self, source: Sequence[int], target: Sequence[int]) -> int:
        """How many links of the source begin a shortest way to the target.

        >>> Topology("tpu v5e", (4, 4)).ports((0, 0), (3, 3))
        2
        """
        if self.switched:
            return int(tuple(source) != tuple(target))
        return sum(
            (2 if wraps and 2 * distance == length else 1) if distance else 0
            for distance, length, wraps in zip(self._distances(source, target), self.shape, self.wrap)
        )

    def _distances(self, source: Sequence[int], target: Sequence[int]) -> list[int]:
        for chip in (source, target):
            if len(chip) != len(self.shape) or not all(0 <= c < n for c, n in zip(chip, self.shape)):
                raise HardwareError(
                    f"{self.text} has no chip at {tuple(chip)}.",
                    where=here(),
                    why=f"coordinates go from {(0,) * len(self.shape)} to {tuple(n - 1 for n in self.shape)}",
                    fix=f"{(0,) * len(self.shape)}",
                )
        if self.switched:
            return [int(tuple(source) != tuple(target))]
        steps = [abs(a - b) for a, b in zip(source, target)]
        return [min(d, n - d) if wraps else d for d, n, wraps in zip(steps, self.shape, self.wrap)]

    # Axes.

    def spans(self, axes: Axes = None) -> tuple[Span, ...]:
        """The physical axes that mesh axes (by name) or physical axes (by number, or "dcn") use; None is all of them.

        >>> Topology("tpu v5p", (4, 4, 4), mesh={"x": 16, "y": 4}).spans("x")
        (Span(axis=0, size=4, stride=1), Span(axis=1, size=4, stride=1))
        """
        if axes is None:
            every = [*(["dcn"] if self.slices > 1 else []), *range(len(self.shape))]
            return self.spans(tuple(every))
        names = (axes,) if isinstance(axes, str | int) else tuple(axes)
        spans: list[Span] = []
        for name in names:
            found = self._spans_of(name)
            if any(_overlap(a, b) for a in found for b in spans):
                raise HardwareError(
                    f"Axis {name!r} is named twice on {self.text}.",
                    where=here(),
                    why=f"{', '.join(map(repr, names))} share links",
                    fix="name each axis once",
                )
            spans += found
        return merged(spans)

    def _spans_of(self, name: str | int) -> tuple[Span, ...]:
        if isinstance(name, str) and name in self.mapping:
            return self.mapping[name]
        if name == "dcn":
            return (Span(DCN, self.slices),)
        if isinstance(name, int) and 0 <= name < len(self.shape):
            if self.switched:
                return (Span(0, self.shape[name], prod(self.shape[name + 1 :])),)
            return (Span(name, self.shape[name]),)
        has = [*map(repr, self.mapping), *map(str, range(len(self.shape)))]
        raise HardwareError(
            f"{self.text} has no axis {name!r}.",
            where=here(),
            why=f"it has {', '.join(has)}",
            fix=f"axes={has[0]}"
            if self.mapping
            else f"Topology({self.chip.name!r}, {self.shape}, mesh={{{str(name)!r}: …}})",
        )

    def wraps(self, span: Span) -> bool:
        """Whether a part of an axis is a ring."""
        return self.wrap[span.axis] and span.size * span.stride == self.shape[span.axis]

    # Construction.

    def _wrap(self, wrap: bool | Sequence[bool] | None) -> tuple[bool, ...]:
        if self.chip.kind == "gpu":
            return (False,) * len(self.shape)
        if wrap is None and joining(self.chip) is None:
            return (False,) * len(self.shape)
        if wrap is None:
            dims = int(self.chip.torus_dims)
            if dims == 3:
                cubes = len(self.shape) == 3 and all(length % 4 == 0 for length in self.shape)
                return (cubes,) * len(self.shape)
            fact = self.chip.facts.get("pod_shape")
            full = set(fact.value) if fact else set()
            return tuple(length in full for length in self.shape)
        given = (wrap,) * len(self.shape) if isinstance(wrap, bool) else tuple(wrap)
        if len(given) != len(self.shape):
            raise HardwareError(
                f"wrap has {len(given)} entries for the {len(self.shape)} axes of {self.text}.",
                where=here(),
                why="each axis is a ring or a line",
                fix=f"wrap={(True,) * len(self.shape)}",
            )
        # Two chips are joined by one link: a ring of two is a line.
        return tuple(wraps and length > 2 for wraps, length in zip(given, self.shape))

    def _check_possible(self) -> None:
        chip, shape = self.chip, self.shape
        if joining(chip) is None:
            if self.size > 1:
                raise HardwareError(
                    f"How {self.size} chips of {chip.name} are joined is not known.",
                    where=here(),
                    why=f"its data has no {_JOINING[chip.kind]}, and so only one of them is a machine",
                    fix="a machine of one chip",
                )
            return
        if self.switched:
            node = self.node_size
            if prod(shape) > node and prod(shape) % node:
                raise HardwareError(
                    f"{prod(shape)} {chip.name} do not fill their nodes.",
                    where=here(),
                    why=f"a node has {node} GPUs, and {prod(shape)} is more than one node but no multiple of {node}",
                    fix=f"Topology({chip.name!r}, {prod(shape) // node * node})",
                )
            return
        dims = int(chip.torus_dims)
        if len(shape) > dims:
            cut = len(shape) - dims + 1
            raise HardwareError(
                f"{self.text} has {len(shape)} axes.",
                where=here(),
                why=f"{chip.name} chips are joined in {dims} dimensions ({int(chip.links)} links each)",
                fix=f"Topology({chip.name!r}, {(prod(shape[:cut]), *shape[cut:])})",
            )
        fact = chip.facts.get("pod_shape")
        pod = tuple(fact.value) if fact else ()
        most = int(chip.known("pod_chips", prod(pod) if pod else float(prod(shape))))
        longest = sorted(pod, reverse=True)
        if prod(shape) > most or (pod and any(a > b for a, b in zip(sorted(shape, reverse=True), longest))):
            limit = "x".join(map(str, pod)) + f" = {most}" if pod else str(most)
            raise HardwareError(
                f"There is no {self.text}.",
                where=here(),
                why=f"a pod of {chip.name} has {limit} chips",
                fix=f"Topology({chip.name!r}, {pod or most}, slices=…) joins pods by the data-center network",
            )

    def _map(self, mapping: Mapping[str, Any] | None) -> dict[str, tuple[Span, ...]]:
        if not self.mesh:
            return {}
        devices = prod(self.mesh.values())
        shown = ", ".join(f"{name}={size}" for name, size in self.mesh.items())
        if devices > self.size:
            raise HardwareError(
                f"A mesh of {shown} does not fit on {self.text}.",
                where=here(),
                why=f"the mesh has {devices} devices, the machine {self.size} chips",
                fix=self._large_enough(devices),
            )
        if mapping is not None:
            return self._by_hand(mapping)
        lengths = (prod(self.shape),) if self.switched else self.shape
        placed = place(self.mesh, lengths, self.slices)
        if placed is None:
            raise HardwareError(
                f"A mesh of {shown} cannot be laid on {self.text}.",
                where=here(),
                why="its sizes do not divide the lengths of the machine's axes",
                fix="mesh sizes whose products are "
                + ("the slices and then the lengths" if self.slices > 1 else "lengths")
                + f", e.g. mesh={self._example_mesh()}",
            )
        return placed

    def _example_mesh(self) -> dict[str, int]:
        sizes = [*([self.slices] if self.slices > 1 else []), *self.shape]
        return dict(zip("xyzw", sizes))

    def _large_enough(self, devices: int) -> str:
        if self.switched:
            node = self.node_size
            return f"Topology({self.chip.name!r}, {devices if devices <= node else -(-devices // node) * node}, mesh=…)"
        fact = self.chip.facts.get("pod_shape")
        if len(self.mesh) <= int(self.chip.torus_dims) and (
            not fact or all(a <= b for a, b in zip(sorted(self.mesh.values()), sorted(fact.value)[-len(self.mesh) :]))
        ):
            return f"Topology({self.chip.name!r}, {tuple(self.mesh.values())}, mesh=…)"
        return f"slices={-(-devices // prod(self.shape))}, or a larger shape"

    def _by_hand(self, mapping: Mapping[str, Any]) -> dict[str, tuple[Span, ...]]:
        out: dict[str, tuple[Span, ...]] = {}
        used: list[Span] = []
        for name, size in self.mesh.items():
            axes = mapping.get(name, ())
            spans = [
                span
                for axis in ((axes,) if isinstance(axes, str | int) else tuple(axes))
                for span in ((axis,) if isinstance(axis, Span) else self._physical(axis))
            ]
            if prod(span.size for span in spans) != size or any(_overlap(a, b) for a in spans for b in used):
                shown = " and ".join(map(str, (axes,) if isinstance(axes, str | int) else axes)) or "none"
                raise HardwareError(
                    f"Mesh axis {name!r} of size {size} cannot lie on physical axes {shown} of {self.text}.",
                    where=here(),
                    why=f"these hold {prod(span.size for span in spans)} chips, each used once",
                    fix="leave mapping out, or name axes whose lengths multiply to the size",
                )
            used += spans
            out[name] = tuple(spans)
        return out

    def _physical(self, axis: str | int) -> tuple[Span, ...]:
        before, self.mapping = getattr(self, "mapping", {}), {}
        try:
            return self._spans_of(axis)
        finally:
            self.mapping = before


def mesh_sizes(mesh: object) -> dict[str, int]:
    """Axis names and sizes of a mesh: a dict, or anything whose ``.shape`` is one.

    >>> mesh_sizes({"x": 2, "y": 4})
    {'x': 2, 'y': 4}
    """
    shape = mesh if isinstance(mesh, Mapping) else getattr(mesh, "shape", None)
    if not isinstance(shape, Mapping):
        raise HardwareError(
            f"{mesh!r} is not a mesh.",
            where=here(),
            why="a mesh names its axes and their sizes",
            fix='{"x": 2, "y": 4}',
        )
    right = {str(name): size if _is_count(size) else 1 for name, size in shape.items()}
    return {str(name): _count(size, f"mesh axis {name!r}", f"mesh={right}") for name, size in shape.items()}


_MEASURED = {
    "link": ("link_bytes_per_s", "nvlink_bytes_per_s"),
    "net": ("node_bytes_per_s", "unit_bytes_per_s", "dcn_bytes_per_s"),
}
_JOINING = {"gpu": "nvlink_domain", "tpu": "torus_dims", "cpu": "torus_dims"}


def joining(chip: Chip) -> object:
    """What says how chips are joined; None for a chip of which only measurements are known."""
    fact = chip.facts.get(_JOINING[chip.kind])
    return fact.value if fact else None


def slice_shape(chip: Chip, count: int) -> tuple[int, ...]:
    """The shape of a slice of ``count`` chips; a count alone where chips have no slices or a pod has fewer.

    >>> slice_shape(get("tpu v5e"), 64), slice_shape(get("tpu v5p"), 32), slice_shape(get("tpu v5p"), 6144)
    ((8, 8), (2, 4, 4), (16, 16, 24))
    """
    fact = chip.facts.get("slice_shapes")
    if fact is None or count > _pod_chips(chip):
        return (count,)
    found = _slices(chip)
    if count not in found:
        below, above = (max, [n for n in found if n < count]), (min, [n for n in found if n > count])
        near = [choose(counts) for choose, counts in (below, above) if counts]
        shapes = [f"{'x'.join(map(str, found[n]))} = {n}" for n in near]
        raise HardwareError(
            f"No slice of {chip.name} has {count} chips.",
            where=here(),
            why=f"those nearest to it are {' and '.join(shapes)}",
            fix=" or ".join(f"Topology({chip.name!r}, {n})" for n in near),
        )
    return found[count]


def _pod_chips(chip: Chip) -> int:
    pod = chip.facts.get("pod_shape")
    return int(chip.known("pod_chips", prod(pod.value) if pod else max(map(prod, _listed(chip)))))


def _listed(chip: Chip) -> list[tuple[int, ...]]:
    return [tuple(map(int, text.split("x"))) for text in chip.facts["slice_shapes"].value]


def _slices(chip: Chip) -> dict[int, tuple[int, ...]]:
    """Shapes of slices by their number of chips: those listed, and of 3-D chips the most even box of cubes."""
    if int(chip.torus_dims) != 3:
        return {prod(shape): shape for shape in _listed(chip)}
    pod, most = chip.facts.get("pod_shape"), _pod_chips(chip)
    boxes = [
        (a, b, c)
        for a in range(4, round(most ** (1 / 3)) + 1, 4)
        for b in range(a, most // (4 * a) + 1, 4)
        for c in range(b, most // (a * b) + 1, 4)
    ]
    boxes.sort(key=lambda box: -box[2])  # the most even last
    by_count = {prod(box): box for box in boxes}
    longest = sorted(pod.value) if pod else by_count[most]  # where the sources give no lengths, those of an even pod
    fitting = {prod(box): box for box in boxes if all(n <= m for n, m in zip(box, longest))}
    return {prod(shape): shape for shape in _listed(chip)} | fitting


def _shape(chip: Chip, shape: int | str | Sequence[int] | Mapping[str, int]) -> tuple[int, ...]:
    lengths: Iterable[Any]
    if isinstance(shape, int):
        lengths = (shape,)
    elif isinstance(shape, str):
        lengths = [read_integer(part) if re.fullmatch("[0-9]+", part) else part for part in shape.lower().split("x")]
    elif isinstance(shape, Iterable):
        lengths = shape.values() if isinstance(shape, Mapping) else shape
    else:
        lengths = ()
    out = tuple(lengths)
    if not out or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in out):
        raise HardwareError(
            f"{shape!r} is not the shape of a machine.",
            where=here(),
            why="a shape is the number of chips along each axis, all positive",
            fix=f"Topology({chip.name!r}, {'8' if chip.kind == 'gpu' else '(4, 4)'})",
        )
    return out


def _is_count(value: object) -> bool:
    return hasattr(value, "__index__") and int(value) >= 1  # type: ignore[call-overload]


def _count(value: object, what: str, fix: str = "1") -> int:
    if not _is_count(value):
        raise HardwareError(f"{what} is {value!r}.", where=here(), why="it must be a positive integer", fix=fix)
    return int(value)  # type: ignore[call-overload, no-any-return]


def _overlap(a: Span, b: Span) -> bool:
    """Whether two parts of one axis share chips: neither begins where the other ends."""
    if a.axis != b.axis or a.size == 1 or b.size == 1:
        return False
    low, high = sorted((a, b), key=lambda s: s.stride)
    return high.stride < low.stride * low.size or high.stride % (low.stride * low.size) != 0
