"""How a result of ours is compared with JAX's: equal in kind, and in contents to what JAX's own arithmetic leaves open.

What differs by more than a few roundings is compared with what JAX makes of operands that are off by a rounding: a
result that moves as far is no evidence of anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import meshwright as mw
from meshwright.core.trace import Array
from meshwright.core.types import TensorType
from tests.numpy.calls.drawing import kind_of

ROUNDINGS = 16  # this many, of the largest element, are nothing
EXCUSED = 64  # and this many are the most that the noise of one call excuses
AS_NEAR = 2  # how much farther than JAX a result of ours may be from that of wider numbers
WILD = 0.05  # a result that moves by this much of its size is compared in kind alone
NOISES = 3  # results that these excuse are near; what they do not is tried with more
MORE_NOISES = 12


class Difference(AssertionError):
    """What differs, in words."""


class DifferentKind(Difference):
    """A result of another structure, dtype or shape, which no rounding excuses."""


def on_meshwright(x: Any) -> Any:
    """JAX's value as Meshwright's, of the same dtype and weak type."""
    if not isinstance(x, jax.Array):
        return x
    data = np.asarray(x)
    return Array(data, TensorType(data.shape, data.dtype, x.weak_type and data.dtype != bool))


def leaves(x: Any) -> list[Any]:
    """The values in nested tuples and lists."""
    return [leaf for item in x for leaf in leaves(item)] if isinstance(x, tuple | list) else [x]


def epsilon(dtype: Any) -> float:
    """Half the distance from 1 to the next number of a dtype; 0 if it has whole numbers alone."""
    return float(ml_dtypes.finfo(dtype).eps) / 2 if kind_of(dtype) in "fc" else 0.0


def smallest(dtype: Any) -> float:
    """The smallest normal number: XLA takes smaller ones for zero."""
    return float(ml_dtypes.finfo(dtype).tiny) if kind_of(dtype) in "fc" else 0.0


def plain(x: Any) -> np.ndarray[Any, Any]:
    """Contents in a dtype that NumPy calculates with."""
    data = np.asarray(x)
    if kind_of(data.dtype) == "f":
        return data.astype(np.float64)
    return data.astype(np.complex128) if data.dtype.kind == "c" else data


def same_kind(ours: Any, theirs: Any, weak: bool = True) -> None:
    """Equal in everything but contents; without ``weak``, also but for that."""
    if not isinstance(theirs, jax.Array):
        if isinstance(theirs, np.ndarray | np.generic):
            theirs = theirs.tolist()
        if isinstance(ours, mw.numpy.ndarray) or np.asarray(ours != theirs).any():
            raise DifferentKind(f"{ours!r}, JAX has {theirs!r}")
        return
    if not isinstance(ours, mw.numpy.ndarray):
        raise DifferentKind(f"{type(ours).__name__}, JAX has an array")
    mine, wanted = (
        f"{x.dtype}{list(x.shape)}{' weak' * bool(weak and x.weak_type and x.dtype != bool)}" for x in (ours, theirs)
    )
    if mine != wanted:
        raise DifferentKind(f"{mine}, JAX has {wanted}")


def distance(ours: Any, theirs: Any, poles: bool = False) -> np.ndarray[Any, Any]:
    """How far apart elements are; infinite where one of them is not a number and the other is."""
    a, b = plain(ours), plain(theirs)
    if a.dtype.kind in "biu":
        return np.where(a == b, 0.0, np.inf)
    if a.dtype.kind == "c":
        both = np.maximum(distance(a.real, b.real, poles), distance(a.imag, b.imag, poles))
        return np.where(poles & (np.isnan(b) | (~np.isfinite(a) & ~np.isfinite(b))), 0.0, both)
    same = np.isnan(b) | (~np.isfinite(a) & ~np.isfinite(b)) if poles else np.isnan(a) & np.isnan(b)
    with np.errstate(all="ignore"):
        apart = np.abs(a - b)
        return np.where((a == b) | same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def scale(*arrays: Any) -> float:
    """The largest finite absolute value."""
    largest = 0.0
    for x in arrays:
        data = np.abs(plain(x)).ravel()
        data = data[np.isfinite(data)]
        largest = max(largest, float(data.max()) if data.size else 0.0)
    return largest


def noisy(x: Any, random: np.random.Generator, terms: float = 0.0) -> Any:
    """An array of JAX's, perhaps traced, with each element off by a rounding, its own and one of its ``terms``."""
    if not isinstance(x, jax.Array) or kind_of(x.dtype) not in "fc":
        return x
    signs = random.choice([-1.0, 1.0], x.shape)
    noise, added = 1 + 2 * epsilon(x.dtype) * signs, 2 * epsilon(x.dtype) * terms * signs
    if x.weak_type:
        return x * float(noise.ravel()[0]) + float(added.ravel()[0]) if x.size else x
    moved = x * jnp.asarray(noise.astype(x.dtype))
    return moved + jnp.asarray(added.astype(x.dtype)) if terms else moved


def widened(x: Any) -> Any:
    """An array of JAX's in the widest dtype of its kind, where there are 64-bit types."""
    if not isinstance(x, jax.Array) or x.dtype == bool:
        return x
    whole = {"i": np.int64, "u": np.uint64}.get(kind_of(x.dtype))
    return jnp.asarray(plain(x) if whole is None else np.asarray(x).astype(whole))


def floats(values: Sequence[Any]) -> list[Any]:
    """The arrays of JAX's that have derivatives."""
    return [x for x in values if isinstance(x, jax.Array) and kind_of(x.dtype) in "fc"]


def compare(
    ours: Any,
    theirs: Any,
    again: Callable[[np.random.Generator], Any],
    operands: Sequence[Any] | None = None,
    cancels: float = 0.0,
    coarse: float = 0.0,
    poles: bool = False,
    wider: Callable[[], Any] | None = None,
) -> str:
    """Raise a ``Difference``, or say how equal: ``exact`` to roundings, ``near`` as JAX is to itself, or ``wild``.

    ``wider`` computes what JAX makes of the same in wider numbers: ours may be off as far from that as JAX's is.

    ``again`` computes JAX's result once more from values off by a rounding. What that excuses is bounded, for one call
    of known ``operands``, by how large and how coarse they are; ``cancels`` is the size of terms that cancel, and
    ``coarse`` the rounding on the way. At ``poles`` infinities and NaN are one, and JAX's NaN is anything: no
    derivative is defined there.
    """
    mine, wanted = leaves(ours), leaves(theirs)
    if len(mine) != len(wanted):
        raise DifferentKind(f"{len(mine)} results, JAX has {len(wanted)}")
    for a, b in zip(mine, wanted, strict=True):
        same_kind(a, b, weak=not poles)  # a derivative is as weak as the rule that gave it happens to be written
    apart = {}
    for n, (a, b) in enumerate(zip(mine, wanted, strict=True)):
        if isinstance(b, jax.Array) and b.size:
            d = float(distance(a, b, poles).max())
            unit = epsilon(b.dtype)
            if d > ROUNDINGS * (max(unit, coarse) if unit else 0.0) * scale(b) + smallest(b.dtype):
                apart[n] = d
    if not apart:
        return "exact"
    given = floats(operands or [])
    moved = dict.fromkeys(apart, 0.0)
    for seed in range(MORE_NOISES):
        once = leaves(again(np.random.default_rng(seed)))
        for n in apart:
            same = np.shape(once[n]) == np.shape(wanted[n])
            moved[n] = max(moved[n], float(distance(once[n], wanted[n], poles).max()) if same else np.inf)
        excused = {n: _excused(wanted[n], moved[n], given, cancels, coarse, operands is not None) for n in apart}
        if seed >= NOISES - 1 and all(apart[n] <= excused[n] for n in apart):
            break
    found = "near"
    for n, d in apart.items():
        b = wanted[n]
        if np.isinf(moved[n]) or (operands is None and moved[n] > WILD * scale(b)):
            found = "wild"
        elif d > excused[n] and not (wider is not None and _as_near(mine[n], b, wider, n, excused[n], poles)):
            apart_at = distance(mine[n], b, poles)
            worst = np.unravel_index(int(np.argmax(apart_at)), apart_at.shape)
            raise Difference(
                f"result {n}, {b.dtype}{list(b.shape)}, at {tuple(map(int, worst))}: {plain(mine[n])[worst]}, "
                f"JAX has {plain(b)[worst]} (off by {d:.3g}; JAX moves by {moved[n]:.3g})"
            )
    return found


def _excused(b: Any, moved: float, given: Sequence[Any], cancels: float, coarse: float, one_call: bool) -> float:
    """How far a result may be off that moves with roundings of what it is made of; bounded for one call."""
    unit = max([epsilon(b.dtype), *(epsilon(x.dtype) for x in given)]) if kind_of(b.dtype) in "fc" else 0.0
    mixed = 4 * unit * scale(b) if unit > epsilon(b.dtype) else 0.0  # a coarser operand may be rounded with
    excused = max(8 * moved, ROUNDINGS * max(unit, coarse if unit else 0.0) * cancels, mixed)
    return min(excused, EXCUSED * unit * max(scale(b), scale(*given))) if one_call else excused


def _as_near(ours: Any, theirs: Any, wider: Callable[[], Any], n: int, excused: float, poles: bool) -> bool:
    """Whether ours is at no element much farther from the result in wider numbers than JAX's own farthest."""
    try:
        with jax.enable_x64(True):
            wide = leaves(wider())[n]
    except Exception:
        return False  # the text of the call names a dtype that does not go with wider ones
    if kind_of(theirs.dtype) not in "fc" or np.shape(wide) != np.shape(theirs):
        return False
    ours_off, theirs_off = (float(distance(x, wide, poles).max()) for x in (ours, theirs))
    return ours_off <= max(AS_NEAR * theirs_off, excused) and np.isfinite(ours_off)
