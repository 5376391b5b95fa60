"""Policies of ``checkpoint``: which values of a forward run are kept for the backward one.

A policy is asked of every equation of the forward run, ``policy(op, *operand_types, **params)``. It answers True if the
results are to be kept where the derivative needs them, ``Offloadable(src, dst)`` if in the memory of the host; what is
not kept is computed again. Those here go by what is known of ops, never by what they are called.

>>> import meshwright as mw, meshwright.numpy as mnp
>>> f = mw.checkpoint(lambda w, x: mnp.sin(x @ w).sum(), policy=mw.checkpoint_policies.dots_saveable)
>>> mw.grad(f)(mnp.zeros((2, 2)), mnp.ones((1, 2)))
Array([[1., 1.],
       [1., 1.]], dtype=float32)
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from meshwright.core.factors import pointwise
from meshwright.core.facts import Across, Structure
from meshwright.core.op import Linearity, No, Op, Types
from meshwright.core.program import Params, Rule
from meshwright.core.source import here
from meshwright.errors import MeshwrightError
from meshwright.transform.recompute import KeepRule, Kept

__all__ = [
    "Offloadable",
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "nothing_saveable",
    "offload_dot_with_no_batch_dims",
    "save_and_offload_only_these_names",
    "save_any_names_but_these",
    "save_anything_except_these_names",
    "save_from_both_policies",
    "save_only_these_names",
]


HOST = ("pinned_host", "unpinned_host")


class Offloadable(NamedTuple):
    """The answer of a policy that keeps the results of an equation in the memory of the host, ``dst``."""

    src: str = "device"
    dst: str = "pinned_host"


Decision = Callable[[Op, Types, Params], bool | Offloadable]


@dataclass(frozen=True)
class Policy:
    """A policy of this module: ``text`` is how it is written, ``never`` are names of values that are never kept."""

    text: str
    decide: Decision = field(compare=False, repr=False)
    never: frozenset[str] = frozenset()

    def __call__(self, op: Op, *types: Any, **params: Any) -> bool | Offloadable:
        return self.decide(op, types, params)

    def __repr__(self) -> str:
        return f"checkpoint_policies.{self.text}"


def is_product(op: Op) -> bool:
    """Whether an op multiplies its operands other than element by element: products of matrices, convolutions."""
    return op.linear is Linearity.EACH and op.factors is not pointwise


def has_batch(op: Op, types: Types, params: Params) -> bool:
    """Whether a product is one for each element of a batch: a factor is in both operands and in the result."""
    assert not isinstance(op.factors, No)
    found = op.type(*types, **params)
    results = found if isinstance(found, tuple) else (found,)
    rule = op.factors(types, results, params)
    in_all = [{name for dim in dims for name in dim} for dims in (*rule.operands, *rule.results)]
    return bool(set.intersection(*in_all))


def _is_plain_product(op: Op, types: Types, params: Params) -> bool:
    return is_product(op) and op.split.across is Across.NOT and not has_batch(op, types, params)


def _name(op: Op, params: Params) -> str | None:
    return params["name"] if op.structure is Structure.NAMED else None


everything_saveable = Policy("everything_saveable", lambda op, types, params: True)
nothing_saveable = Policy("nothing_saveable", lambda op, types, params: False)
dots_saveable = Policy("dots_saveable", lambda op, types, params: is_product(op))
dots_with_no_batch_dims_saveable = Policy("dots_with_no_batch_dims_saveable", _is_plain_product)
checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def save_only_these_names(*names: str) -> Policy:
    """Keep values that ``checkpoint_name`` gave one of these names.

    >>> import meshwright as mw
    >>> mw.checkpoint_policies.save_only_these_names("hidden")
    checkpoint_policies.save_only_these_names('hidden')
    """
    wanted = _names("save_only_these_names", names)
    return Policy(_call("save_only_these_names", names), lambda op, types, params: _name(op, params) in wanted)


def save_any_names_but_these(*names: str) -> Policy:
    """Keep values that ``checkpoint_name`` gave a name other than these."""
    refused = _names("save_any_names_but_these", names) | {None}
    return Policy(_call("save_any_names_but_these", names), lambda op, types, params: _name(op, params) not in refused)


def save_anything_except_these_names(*names: str) -> Policy:
    """Keep all values but those that ``checkpoint_name`` gave one of these names."""
    refused = _names("save_anything_except_these_names", names)
    text = _call("save_anything_except_these_names", names)
    return Policy(text, lambda op, types, params: _name(op, params) not in refused, refused)


def save_and_offload_only_these_names(
    *,
    names_which_can_be_saved: Sequence[str],
    names_which_can_be_offloaded: Sequence[str],
    offload_src: str,
    offload_dst: str,
) -> Policy:
    """Keep values with one of some names, and those with one of some others in the memory of the host."""
    function = "save_and_offload_only_these_names"
    saved, offloaded = (_names(function, names) for names in (names_which_can_be_saved, names_which_can_be_offloaded))
    both = sorted(saved & offloaded)
    if both:
        raise MeshwrightError(
            f"{function} is to save {both[0]!r} and to offload it.",
            where=here(),
            why="a value is kept in the memory of the device or in that of the host",
            fix=f"names_which_can_be_offloaded={sorted(offloaded - saved)}",
        )
    there = _there(function, offload_src, offload_dst)

    def decide(op: Op, types: Types, params: Params) -> bool | Offloadable:
        name = _name(op, params)
        return there if name in offloaded else name in saved

    text = f"names_which_can_be_saved={sorted(saved)}, names_which_can_be_offloaded={sorted(offloaded)}"
    return Policy(f"{function}({text}, {_places(there)})", decide)


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """Keep the results of matmuls without batch dims in the memory of the host.

    >>> import meshwright as mw
    >>> mw.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host").text
    "offload_dot_with_no_batch_dims(offload_src='device', offload_dst='pinned_host')"
    """
    function = "offload_dot_with_no_batch_dims"
    there = _there(function, offload_src, offload_dst)
    return Policy(
        f"{function}({_places(there)})",
        lambda op, types, params: there if _is_plain_product(op, types, params) else False,
    )


def _places(there: Offloadable) -> str:
    return f"offload_src={there.src!r}, offload_dst={there.dst!r}"


def _there(function: str, src: Any, dst: Any) -> Offloadable:
    if src != "device" or dst not in HOST:
        raise MeshwrightError(
            f"{function} cannot move values from {src!r} to {dst!r}.",
            where=here(),
            why="values are computed on the device, and the host has the memories " + " and ".join(HOST),
            fix='offload_src="device", offload_dst="pinned_host"',
        )
    return Offloadable(src, dst)


def save_from_both_policies(policy_1: Any, policy_2: Any) -> Any:
    """Keep what either of two policies keeps, in the memory of the device if one of them says so.

    >>> import meshwright as mw
    >>> policies = mw.checkpoint_policies
    >>> policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names("x"))
    checkpoint_policies.save_from_both_policies(dots_saveable, save_only_these_names('x'))
    """
    rules = [keep_rule(policy_rule(policy)) for policy in (policy_1, policy_2)]

    def either(op: Op, *types: Any, **params: Any) -> bool | Offloadable:
        kept = [found for rule in rules if (found := rule.decide(op, types, params)).kept]
        return Offloadable() if kept and all(found.offloaded for found in kept) else bool(kept)

    if not isinstance(policy_1, Policy) or not isinstance(policy_2, Policy):
        return either
    text = f"save_from_both_policies({policy_1.text}, {policy_2.text})"
    return Policy(text, lambda op, types, params: either(op, *types, **params), policy_1.never & policy_2.never)


def _call(function: str, names: tuple[str, ...]) -> str:
    return f"{function}({', '.join(map(repr, names))})"


def _names(function: str, names: Sequence[Any]) -> frozenset[str]:
    for name in names:
        if not isinstance(name, str):
            raise MeshwrightError(
                f"{function} cannot take {name!r}.",
                where=here(),
                why="it takes the names that were given by mw.checkpoint_name(x, name), each a string",
                fix=f"mw.checkpoint_policies.{function}('hidden', 'scores')",
            )
    return frozenset(names)


# Policies as params of programs


def policy_rule(policy: Any) -> Rule:
    """A policy as a param of an op: a policy of this module is known by its text."""
    if isinstance(policy, Policy):
        return Rule(policy.text, policy)
    if not callable(policy):
        raise MeshwrightError(
            f"checkpoint cannot take policy={policy!r}.",
            where=here(),
            why="a policy says of each equation whether its results are kept: policy(op, *types, **params)",
            fix="policy=mw.checkpoint_policies.dots_saveable, or another of mw.checkpoint_policies",
        )
    return Rule(getattr(policy, "__qualname__", type(policy).__name__), policy)


def keep_rule(rule: Rule | None) -> KeepRule:
    """What the param of an op says about equations; without a policy, nothing is kept."""
    if rule is None:
        return KeepRule(lambda op, types, params: Kept())
    policy = rule.function if rule.function is not None else _read(rule.name)

    def decide(op: Op, types: Types, params: Params) -> Kept:
        return _kept(policy(op, *types, **params), rule.name)

    return KeepRule(decide, getattr(policy, "never", frozenset()))


def _kept(answer: Any, name: str) -> Kept:
    if isinstance(answer, bool):
        return Kept(answer)
    if isinstance(answer, Offloadable):
        return Kept(True, offloaded=True)
    raise MeshwrightError(
        f"The policy {name} answered {answer!r}.",
        where=here(),
        why="a policy says by True or False whether results are kept, or where: Offloadable(src, dst)",
        fix="policy=lambda op, *types, **params: False",
    )


def _read(text: str) -> Any:
    """A policy of this module by its text."""
    try:
        return _evaluated(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, LookupError, TypeError):
        raise MeshwrightError(
            f"The policy {text!r} is not part of this program.",
            why="the program was read from text, which keeps the name of a user's policy and not its Python code",
            fix="trace the function again with mw.make_program(f)(…)",
        ) from None


def _evaluated(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in __all__:
        return globals()[node.id]
    if isinstance(node, ast.Call):
        named = {word.arg: _evaluated(word.value) for word in node.keywords if word.arg}
        return _evaluated(node.func)(*map(_evaluated, node.args), **named)
    return ast.literal_eval(node)
