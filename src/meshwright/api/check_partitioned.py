"""Whether a partitioned program computes what the function does on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.api.grad import grad
from meshwright.compile.jit import jit
from meshwright.core import tree
from meshwright.core.dtypes import is_complex, is_inexact
from meshwright.core.source import here
from meshwright.core.trace import Array, to_array
from meshwright.errors import MeshwrightError
from meshwright.ops.elementwise import tanh


def check_partitioned(
    f: Callable[..., Any], *args: Any, grads: bool = True, rtol: float = 1e-4, atol: float = 1e-5, **shardings: Any
) -> None:
    """Raise unless ``f`` on placed arguments gives what it gives on one device; with ``grads`` also its gradients.

    ``in_shardings`` and ``out_shardings`` are passed on to jit.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((4,), ("x",))
    >>> x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mesh, mw.P("x")))
    >>> check_partitioned(lambda x: mnp.tanh(x).sum(0), x)
    """
    plain = tree.map(lambda x: Array(to_array(x).data, to_array(x).type), args)  # type: ignore[attr-defined]
    expected = jit(f)(*plain)
    _compare("result", jit(f, **shardings)(*args), expected, rtol, atol)
    if not grads or not any(is_inexact(x.dtype) for x in tree.leaves(expected)):
        return
    inexact = tuple(n for n, x in enumerate(args) if all(is_inexact(to_array(leaf).dtype) for leaf in tree.leaves(x)))
    if not inexact:
        return

    def total(*values: Any) -> Any:
        outs = [x for x in tree.leaves(f(*values)) if is_inexact(to_array(x).dtype)]
        return sum(tanh(x.real + x.imag if is_complex(x.dtype) else x).sum() for x in outs)

    slopes = grad(total, argnums=inexact)
    given = {"in_shardings": shardings["in_shardings"]} if "in_shardings" in shardings else {}
    _compare("gradient", jit(slopes, **given)(*args), jit(slopes)(*plain), rtol, atol)


def _compare(what: str, found: Any, expected: Any, rtol: float, atol: float) -> None:
    for name, x, y in zip(tree.path_names(expected), tree.leaves(found), tree.leaves(expected), strict=True):
        a, b = (np.asarray(z).astype(np.complex128 if np.iscomplexobj(z) else np.float64) for z in (x, y))
        if not np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
            worst = float(np.nanmax(np.abs(a - b)))
            raise MeshwrightError(
                f"The partitioned program gives another {what}{f' {name}' if name else ''}.",
                where=here(),
                why=f"it differs from the unpartitioned one by up to {worst:.3g}, more than rtol={rtol}, atol={atol}",
                fix="sums in another order differ a little: a larger rtol; anything more is a defect of Meshwright",
            )
