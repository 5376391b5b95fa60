"""The factor rule of an instance, and rules in sdy's syntax."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from meshwright.core.factors import Dims, Factors, names
from meshwright.errors import TextError
from meshwright.interop.shardy.foreign_rules import CONSERVATIVE, FOREIGN, NEIGHBOURS
from meshwright.interop.stablehlo.instance import Instance, matched_factors
from meshwright.interop.stablehlo.ops import counterpart

# Ops that make values out of nothing, or through which values flow unchanged: no rule is asked for. Shardy has none for
# chlo's ops either, which are lowered before it sees them.
WITHOUT = frozenset({
    "stablehlo.after_all", "stablehlo.case", "stablehlo.constant", "stablehlo.create_token", "stablehlo.infeed",
    "stablehlo.get_tuple_element", "stablehlo.iota", "stablehlo.optimization_barrier", "stablehlo.outfeed",
    "stablehlo.partition_id", "stablehlo.recv", "stablehlo.replica_id", "stablehlo.return", "stablehlo.send",
    "stablehlo.tuple", "stablehlo.while", "sdy.constant",
})  # fmt: skip


def factor_rule(instance: Instance, conservative: bool = False) -> Factors | None:
    """The factor rule of an instance, None if it has none; a ``conservative`` one keeps away from dims that change."""
    if instance.name in WITHOUT or instance.name.startswith("chlo.") or not instance.results:
        return None
    foreign = FOREIGN.get(instance.name)
    if foreign is not None:
        return foreign(instance)
    match = counterpart(instance)
    if match is None or (instance.name == "stablehlo.reshape" and not instance.operands[0].size):
        return None
    rule = matched_factors(instance, match)
    neighbours = NEIGHBOURS.get(instance.name)
    if rule is not None and neighbours is not None:
        rule = neighbours(instance, rule)
    careful = CONSERVATIVE.get(instance.name) if conservative else None
    return careful(instance, rule) if rule is not None and careful is not None else rule


def identity_factors(shape: Sequence[int]) -> Factors:
    """The rule of an op that keeps every dim.

    >>> rule_text(identity_factors((2, 3)))
    '#sdy.op_sharding_rule<([i, j])->([i, j]) {i=2, j=3}>'
    """
    letters = names(len(shape))
    dims = tuple((letter,) for letter in letters)
    return Factors((dims,), (dims,), dict(zip(letters, shape, strict=True)))


_LISTS = (
    ("reduction", "reduced"),
    ("need_replication", "replicated"),
    ("permutation", "permuted"),
    ("blocked_propagation", "blocked"),
)


def rule_text(rule: Factors, custom: bool = False) -> str:
    """A rule as sdy writes it.

    >>> rule_text(Factors.parse("i k, k j -> i j", {"i": 2, "j": 4, "k": 3}))
    '#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=2, j=4, k=3} reduction={k}>'
    """

    def tensors(side: tuple[Dims, ...]) -> str:
        return "(" + ", ".join("[" + ", ".join(map("".join, dims)) + "]" for dims in side) + ")"

    order = {factor: index for index, factor in enumerate(rule.sizes)}
    text = f"{tensors(rule.operands)}->{tensors(rule.results)}"
    if rule.sizes:
        text += " {" + ", ".join(f"{factor}={size}" for factor, size in rule.sizes.items()) + "}"
    for label, field in _LISTS:
        listed = sorted(getattr(rule, field), key=order.__getitem__)
        text += f" {label}={{{', '.join(listed)}}}" if listed else ""
    return f"#sdy.op_sharding_rule<{text}{', custom' if custom else ''}>"


_FACTOR = r"z_\d+|[i-z]"


def read_rule(text: str) -> tuple[Factors, bool]:
    """A rule in sdy's syntax, and whether it is a user's.

    >>> rule, custom = read_rule("#sdy.op_sharding_rule<([ij])->([i, j]) {i=2, j=4}, custom>")
    >>> print(rule, custom)
    (i j) -> i j True
    """
    sizes_pattern, lists_pattern = rf"(?: \{{((?:{_FACTOR})=[^}}]*)\}})?", r"((?: \w+=\{[^}]*\})*)"
    pattern = rf"(?:#sdy\.op_sharding_rule)?<\((.*?)\)->\((.*?)\){sizes_pattern}{lists_pattern}(, custom)?>"
    found = re.fullmatch(pattern, text)
    if found is None:
        raise TextError(f"This is no sharding rule: {text}", fix="#sdy.op_sharding_rule<([i, j])->([j, i]) {i=2, j=4}>")
    left, right, sizes, lists, custom = found.groups()

    def tensors(side: str) -> tuple[Dims, ...]:
        return tuple(
            tuple(tuple(re.findall(_FACTOR, dim)) for dim in dims.split(",")) if dims.strip() else ()
            for dims in re.findall(r"\[([^\]]*)\]", side)
        )

    def named(label: str) -> frozenset[str]:
        part = re.search(rf"{label}=\{{([^}}]*)\}}", lists)
        return frozenset(re.findall(_FACTOR, part[1])) if part else frozenset()

    fields: dict[str, Callable[[], object] | Iterable[str]] = {field: named(label) for label, field in _LISTS}
    numbers = {factor: int(size) for factor, size in re.findall(rf"({_FACTOR})=(\d+)", sizes or "")}
    rule = Factors(tensors(left), tensors(right), numbers, guarded=frozenset(fields["permuted"]), **fields)  # type: ignore[arg-type]
    return rule, custom is not None
