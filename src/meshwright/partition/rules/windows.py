"""Convolutions and window ops along a split dim: each device gets the elements that its windows reach.

Along one dim, window ``o`` reaches from ``o * stride - low`` on, counted in the operand spread by its dilation. A block
of windows needs a block of the operand and what is next to it; so does a block of a kernel, of which each device has
some taps of all windows, and its results are partial sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Across
from meshwright.core.op import Value
from meshwright.core.program import Eqn
from meshwright.core.types import TensorType
from meshwright.ops.window import dilated
from meshwright.partition.blocks import identity, part_index, scalar, without_padding
from meshwright.partition.choose import Choice
from meshwright.partition.layouts import local_type
from meshwright.partition.localize import RULES, Localizer, Version
from meshwright.partition.rules.fetch import fetch, padded, window_at
from meshwright.partition.rules.halo import Need, needed_bytes
from meshwright.partition.rules.strategies import BlockStrategy, cheapest, is_split, parts
from meshwright.sharding.axes import Axes


class Reach(NamedTuple):
    """The elements that devices need along a dim: ``span`` from ``first`` on, in the operand spread by ``dilation``."""

    dim: int
    axes: Axes
    first: tuple[int, ...]
    span: int
    dilation: int
    lead: tuple[int, ...] = ()  # how many windows are looked at before the first that is wanted

    def aligned(self, stride: int) -> Reach:
        """The same with windows before the first, so that elements stand at the same places for all devices; devices
        are whole windows apart."""
        lead = tuple(
            next(n for n in range(self.dilation) if (at - n * stride - self.first[0]) % self.dilation == 0)
            for at in self.first
        )
        first = tuple(at - n * stride for at, n in zip(self.first, lead, strict=True))
        return self._replace(first=first, span=self.span + max(lead) * stride, lead=lead)

    @property
    def need(self) -> Need:
        """The elements that stand at these places."""
        starts = [-(-at // self.dilation) for at in self.first]
        ends = [(at + self.span - 1) // self.dilation for at in self.first]
        return Need(self.dim, starts, max(1, *(end - start + 1 for start, end in zip(starts, ends, strict=True))))

    @property
    def offsets(self) -> list[int]:
        """How far before the first element each device's places begin."""
        starts = self.need.starts
        return [start * self.dilation - at for start, at in zip(starts, self.first, strict=True)]

    @property
    def same_offsets(self) -> bool:
        """Whether the elements stand at the same places for all devices."""
        return len(set(self.offsets)) == 1

    def fetched(self, local: Localizer, x: Value, n: int, fill: Value, op: str) -> tuple[Value, tuple[int, int], int]:
        """The places of a device, as (elements, padding, dilation); places outside of the whole hold ``fill``."""
        why = f"the windows of {op} reach into the next blocks of dim {self.dim}"
        need = self.need
        x = fetch(local, x, self.dim, n, self.axes, need.starts, need.length, fill, why)
        if self.same_offsets:
            low = self.offsets[0]
            return x, (low, self.span - low - dilated(need.length, self.dilation)), self.dilation
        # Elements begin up to dilation - 1 places after the first place.
        x = padded(x, fill, self.dim, self.dilation - 1, self.span, self.dilation - 1)
        starts = [self.dilation - 1 - offset for offset in self.offsets]
        return window_at(x, self.dim, starts, self.span, part_index(local.names, self.axes)), (0, 0), 1


def _reached(t: TensorType, reaches: list[Reach]) -> float:
    return needed_bytes(t, [reach.need for reach in reaches])


# Convolution


def _conv_factors(eqn: Eqn, by_taps: bool) -> Factors:
    """Blocks of windows, or (``by_taps``) blocks of the kernel, each with the part of the input that they reach."""
    (x, w), result = (a.type for a in eqn.inputs), eqn.outputs[0].type
    lhs, rhs, out = eqn.params["dims"]
    groups, batch_groups = eqn.params["feature_groups"], eqn.params["batch_groups"]
    build = FactorBuilder([x, w], [result])
    if batch_groups > 1:
        build.add(batch_groups, (0, lhs[0]), (1, rhs[0]), (2, out[1]))
    build.add(result.shape[out[0]], (0, lhs[0]), (2, out[0]))
    for n in range(2, x.ndim):
        if by_taps:
            build.add(w.shape[rhs[n]], (0, lhs[n]), (1, rhs[n]), kind="reduced")
            build.add(result.shape[out[n]], (2, out[n]), kind="replicated")
        else:
            build.add(result.shape[out[n]], (0, lhs[n]), (2, out[n]))
            build.add(w.shape[rhs[n]], (1, rhs[n]), kind="replicated")
    if groups > 1:
        build.add(groups, (0, lhs[1]), (1, rhs[0]), (2, out[1]))
    build.add(w.shape[rhs[1]], (0, lhs[1]), (1, rhs[1]), kind="reduced")
    build.add(w.shape[rhs[0]] // (groups * batch_groups), (1, rhs[0]), (2, out[1]))
    return build.build()


def _conv_reaches(eqn: Eqn, choice: Choice, by_taps: bool) -> list[Reach] | None:
    """The reach of each device's windows along the dims that a choice splits; None if it cannot run so."""
    (x, w), result, params = (a.type for a in eqn.inputs), eqn.outputs[0].type, eqn.params
    lhs, rhs, out = params["dims"]
    found = []
    for n in range(x.ndim - 2):
        axes = choice.operands[0].dims[lhs[n + 2]].axes
        if not axes:
            continue
        stride, dilation, low = params["strides"][n], params["rhs_dilation"][n], params["padding"][n][0]
        taps, windows = w.shape[rhs[n + 2]], result.shape[out[n + 2]]
        if by_taps and taps % parts(axes):
            return None  # a tap that is padding would meet elements that other taps need
        if by_taps:
            taps //= parts(axes)
            step = taps * dilation
        else:
            windows = -(-windows // parts(axes))
            step = windows * stride
        first = tuple(i * step - low for i in range(parts(axes)))
        span = (windows - 1) * stride + dilated(taps, dilation)
        reach = Reach(lhs[n + 2], axes, first, span, params["lhs_dilation"][n])
        if by_taps and not reach.same_offsets:
            return None  # zeros between the elements would meet taps that they do not meet in the whole
        found.append(reach if by_taps else reach.aligned(stride))
    return found


def _conv(local: Localizer, eqn: Eqn) -> list[Version]:
    (x, w), result, params = (a.type for a in eqn.inputs), eqn.outputs[0].type, eqn.params
    lhs, rhs, out = params["dims"]
    known = [*zip(params["dims"], (local.best(a, unreduced=True) for a in eqn.inputs), strict=False)]
    if eqn.outputs[0] in local.wanted:
        known.append((out, local.wanted[eqn.outputs[0]]))
    split = any(layout.dims[d].axes for dims, layout in known for d in dims[2:])
    if not split or not x.size or not w.size or not result.size:
        return cheapest(local, eqn, [])

    def strategy(by_taps: bool) -> BlockStrategy:
        def extra(choice: Choice) -> float | None:
            found = _conv_reaches(eqn, choice, by_taps)
            return None if found is None else _reached(local_type(x, choice.operands[0]), found)

        def run(choice: Choice) -> list[Version]:
            values = local.operands(eqn, choice)
            spatial = set(lhs[2:])
            for n, dim in choice.padded:
                if n == 1 or dim not in spatial:
                    place = (dim, choice.operands[n].dims[dim].axes, eqn.inputs[n].type.shape[dim])
                    values[n] = without_padding(local.names, values[n], [place], 0)
            padding, dilations = list(params["padding"]), list(params["lhs_dilation"])
            found = _conv_reaches(eqn, choice, by_taps) or []
            for reach in found:
                n = lhs.index(reach.dim) - 2
                size = x.shape[reach.dim]
                values[0], padding[n], dilations[n] = reach.fetched(
                    local, values[0], size, scalar(0, x.dtype), eqn.op.name
                )
            given = {**params, "padding": tuple(padding), "lhs_dilation": tuple(dilations)}
            shape = choice.results[0].local_shape(result.shape)
            if params["feature_groups"] > 1:
                given["feature_groups"] = values[0].shape[lhs[1]] // values[1].shape[rhs[1]]
            if params["batch_groups"] > 1:
                given["batch_groups"] = values[0].shape[lhs[0]] // shape[out[0]]
            value = eqn.op(*values, **given)
            for reach in found:
                if any(reach.lead):
                    dim = out[lhs.index(reach.dim)]
                    value = window_at(value, dim, reach.lead, shape[dim], part_index(local.names, reach.axes))
            return [Version(choice.results[0], value)]

        return BlockStrategy(_conv_factors(eqn, by_taps), extra, run)

    return cheapest(local, eqn, [strategy(False), strategy(True)])


# Window ops


def _fill(combine: str, x: TensorType) -> Value:
    """The value of the elements in the padding of windows."""
    return scalar(0 if combine == "sum" else identity(x.dtype, combine), x.dtype)


def _per_dim(params: Any, dim: int) -> tuple[int, int, int, int, int]:
    """window, stride, low padding, dilation of the operand, dilation of a window"""
    names = ("window", "strides", "base_dilation", "window_dilation")
    window, stride, base, dilation = (params[name][dim] for name in names)
    return window, stride, params["padding"][dim][0], base, dilation


def _may_select(params: Any, dim: int) -> bool:
    """Whether no window holds padding: that is never selected, which a number in its place could be."""
    low, high = params["padding"][dim]
    return bool(low <= 0 and high <= 0)


def _window(local: Localizer, eqn: Eqn) -> list[Version]:
    """Windows that are reduced, or of which one element is taken."""
    types, result, params = [a.type for a in eqn.inputs], eqn.outputs[0].type, eqn.params
    x, name = types[-1], eqn.op.name
    factors = eqn.op.factors(types, [result], params)  # type: ignore[operator]
    touched = [d for d in range(x.ndim) if set(factors.operands[0][d]) & factors.permuted]
    if not x.size or not result.size or not is_split(local, eqn, touched):
        return cheapest(local, eqn, [])

    def reaches(choice: Choice) -> list[Reach]:
        found = []
        for d in touched:
            axes = choice.operands[0].dims[d].axes
            if axes:
                window, stride, low, base, dilation = _per_dim(params, d)
                windows = choice.results[0].local_shape(result.shape)[d]
                first = tuple(i * windows * stride - low for i in range(parts(axes)))
                found.append(Reach(d, axes, first, (windows - 1) * stride + dilated(window, dilation), base))
        return found

    def extra(choice: Choice) -> float | None:
        found = reaches(choice)
        if "select" in params and any(not _may_select(params, r.dim) or not r.same_offsets for r in found):
            return None
        return sum(_reached(local_type(t, s), found) for t, s in zip(types, choice.operands, strict=True))

    def run(choice: Choice) -> list[Version]:
        values = local.operands(eqn, choice)
        padding, base = list(params["padding"]), list(params["base_dilation"])
        fills = [_fill(params.get("select") or eqn.op.split.combine, x)]
        if len(values) == 2:
            fills.insert(0, scalar(0, x.dtype))
        for reach in reaches(choice):
            d = reach.dim
            for n, fill in enumerate(fills):
                values[n], padding[d], base[d] = reach.fetched(local, values[n], x.shape[d], fill, name)
        given = {**params, "padding": tuple(padding), "base_dilation": tuple(base)}
        return [Version(choice.results[0], eqn.op(*values, **given))]

    return cheapest(
        local, eqn, [BlockStrategy(factors._replace(guarded=factors.guarded - factors.permuted), extra, run)]
    )


def _select_and_scatter(local: Localizer, eqn: Eqn) -> list[Version]:
    """Each device looks at all windows that reach into its block, and keeps what falls there."""
    (source, x), params = (a.type for a in eqn.inputs), eqn.params
    plain = eqn.op.factors([source, x], [x], params)  # type: ignore[operator]
    touched = [d for d in range(x.ndim) if set(plain.operands[1][d]) & plain.permuted]
    if not x.size or not source.size or not is_split(local, eqn, touched):
        return cheapest(local, eqn, [])
    build = FactorBuilder([source, x], [x])
    for d, n in enumerate(x.shape):
        build.add(n, (0, d), (1, d), (2, d))

    def windows(choice: Choice, d: int) -> tuple[Need, Need, list[int]]:
        """The windows that devices look at, what these reach, and where each device's block begins in that."""
        window, stride, low, _, dilation = _per_dim(params, d)
        reach = dilated(window, dilation)
        block = choice.operands[1].local_shape(x.shape)[d]
        count = parts(choice.operands[1].dims[d].axes)
        first = [-(-(i * block + low - reach + 1) // stride) for i in range(count)]
        last = [((i + 1) * block - 1 + low) // stride for i in range(count)]
        length = max(1, *(b - a + 1 for a, b in zip(first, last, strict=True)))
        starts = [at * stride - low for at in first]
        begins = [i * block - start for i, start in enumerate(starts)]
        return Need(d, first, length), Need(d, starts, (length - 1) * stride + reach), begins

    def split(choice: Choice) -> list[int]:
        return [d for d in touched if choice.operands[1].dims[d].axes]

    def extra(choice: Choice) -> float | None:
        if any(not _may_select(params, d) or params["base_dilation"][d] != 1 for d in split(choice)):
            return None
        found = [windows(choice, d) for d in split(choice)]
        sent = needed_bytes(local_type(source, choice.operands[0]), [need for need, _, _ in found])
        return sent + needed_bytes(local_type(x, choice.operands[1]), [need for _, need, _ in found])

    def run(choice: Choice) -> list[Version]:
        given, looked = local.operands(eqn, choice)
        padding = list(params["padding"])
        blocks = looked.shape
        why = f"the windows of {eqn.op.name} reach into the next blocks"
        for d in split(choice):
            axes = choice.operands[1].dims[d].axes
            sent, seen, _ = windows(choice, d)
            zero, lowest_ = scalar(0, x.dtype), _fill(params["select"], x)
            given = fetch(local, given, d, source.shape[d], axes, sent.starts, sent.length, zero, why)
            looked = fetch(local, looked, d, x.shape[d], axes, seen.starts, seen.length, lowest_, why)
            padding[d] = (0, 0)
        out = eqn.op(given, looked, **{**params, "padding": tuple(padding)})
        for d in split(choice):
            axes = choice.operands[1].dims[d].axes
            begins = windows(choice, d)[2]
            low, high = max(0, -min(begins)), max(0, max(begins) + blocks[d] - out.shape[d])
            out = padded(out, scalar(0, x.dtype), d, low, high)
            out = window_at(out, d, [at + low for at in begins], blocks[d], part_index(local.names, axes))
        return [Version(choice.results[0], out)]

    return cheapest(local, eqn, [BlockStrategy(build.build(), extra, run)])


RULES.update({Across.CONVOLVED: _conv, Across.WINDOWED: _window, Across.UNWINDOWED: _select_and_scatter})
