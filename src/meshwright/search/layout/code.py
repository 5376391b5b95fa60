"""A layout as Python to paste, for Meshwright or for JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshwright.core import tree
from meshwright.core.source import here
from meshwright.errors import MeshwrightError
from meshwright.search.layout.texts import heading, spec_text, uneven_dims
from meshwright.search.layout.written import functions, jax_imports

if TYPE_CHECKING:
    from meshwright.search.layout.found import FoundLayout
    from meshwright.search.layout.step import Step


def code_of(layout: FoundLayout, to: str) -> str:
    """The layout as Python."""
    step = layout.step
    assert step is not None
    jax = to == "jax"
    if jax:
        _check_even(layout, step)
    specs = [spec_text(s.spec) for s in tree.leaves(layout.in_shardings)]
    lines = heading(layout.mesh, to, bool(layout.written))
    if layout.written:
        given = step.given or step.function
        lines += [*(jax_imports(given) if jax else []), functions(given, layout.written), "", ""]
    trees = tree.unflatten(step.in_tree, [_Code(s) for s in specs])[0]
    names = []
    for n, part in enumerate(trees):
        names.append(f"{step.names[n]}_specs")
        lines.append(f"{names[-1]} = {_tree_text(part)}")
    placed = ("jax.tree.map(lambda spec: NamedSharding(mesh, spec), ({0},), is_leaf=lambda x: isinstance(x, P))"
              if jax else "mw.tree.map(lambda spec: NamedSharding(mesh, spec), ({0},))")  # fmt: skip
    lines.append(f"in_shardings = {placed.format(', '.join(names))}")
    outs = _out_text(step, tree.unflatten(step.out_tree, range(step.out_tree.num_leaves)))
    lines.append(f"out_shardings = {outs}")
    donate, name = step.donate, _identifier(step.name)
    extra = f", donate_argnums={donate}" if donate else ""
    call = "jax.jit" if jax else "mw.jit"
    if step.microbatches > 1 and jax:  # nothing of JAX takes a step apart: this is partitioned here, and XLA runs it
        call = "mw.interop.jax.jit"
        lines.insert(0, "import meshwright as mw")
        extra += f", microbatches={step.microbatches}, batch_args={step.batch_args}"
    elif step.microbatches > 1:
        lines.append(f"{name} = mw.microbatched({name}, {step.microbatches}, batch_args={step.batch_args})")
    lines.append(f"{name} = {call}({name}, in_shardings=in_shardings, out_shardings=out_shardings{extra})")
    if layout.constraints and not layout.written:
        constraint = "jax.lax.with_sharding_constraint" if jax else "mw.lax.with_sharding_constraint"
        lines += ["", "# In the step, values to be laid out so:"]
        shown = dict.fromkeys(
            f"#   {c.source or '?'}: {constraint}(…, NamedSharding(mesh, {spec_text(c.spec)}))  of {c.type.short()}"
            for c in layout.constraints
        )
        lines += shown
    return "\n".join(lines)


def _check_even(layout: FoundLayout, step: Step) -> None:
    """Refuse arguments whose parts are not equal, which JAX does not take."""
    padded = uneven_dims(layout)
    if padded:
        one = padded[0]
        raise MeshwrightError(
            "JAX takes arguments in equal parts alone.",
            where=here(),
            why=f"in this layout {one.name} has {one.length} along dim {one.dim}, in {one.parts} parts",
            fix=f"mw.find_layout(…, even=True), or {one.name} padded to {one.padded}",
        )


def _out_text(step: Step, part: Any) -> str:
    """The shardings of results as code: those of the arguments that they are anew, None for others."""
    numbers = tree.leaves(part)
    if not any(n in step.returned for n in numbers):
        return "None"
    for k, arg in enumerate(step.args):
        mine = [n for n, one in enumerate(step.argument) if one == k]
        if tree.flatten(arg)[1] == tree.flatten(part)[1] and mine == [step.returned.get(n) for n in numbers]:
            return f"in_shardings[{k}]"
    if isinstance(part, dict):
        return "{" + ", ".join(f"{key!r}: {_out_text(step, one)}" for key, one in part.items()) + "}"
    inner = ", ".join(_out_text(step, one) for one in part)
    return f"[{inner}]" if isinstance(part, list) else f"({inner}{',' if len(part) == 1 else ''})"


class _Code(str):
    """A piece of code among the leaves of a tree."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _tree_text(part: Any) -> str:
    """A tree of pieces of code as code."""
    if isinstance(part, _Code):
        return str(part)
    if isinstance(part, dict):
        return "{" + ", ".join(f"{key!r}: {_tree_text(value)}" for key, value in part.items()) + "}"
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        fields = zip(part._fields, part, strict=True)
        return f"{type(part).__name__}({', '.join(f'{name}={_tree_text(value)}' for name, value in fields)})"
    if isinstance(part, tuple):
        return f"({', '.join(map(_tree_text, part))}{',' if len(part) == 1 else ''})"
    if isinstance(part, list):
        return f"[{', '.join(map(_tree_text, part))}]"
    return "None" if part is None else repr(part)


def _identifier(name: str) -> str:
    """The name of a function, or one for what has none."""
    return name if name.isidentifier() else "step"
