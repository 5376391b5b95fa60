"""What changed in JAX and in the Shardy that comes with it, version by version.

Ours does as the newest does, or says why not. Tests that compare with an older version ask ``older_than(CHANGE)`` and
leave out what changed since; ``test_versions`` holds, by an example for each change, that ours and the version that is
installed agree exactly where this table says so. The same table for users is in docs/versions.md.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

INSTALLED = tuple(int(part) for part in jax.__version__.split(".")[:3] if part.isdigit())


class Change(NamedTuple):
    """What is different from version ``since`` on, and whether ours followed."""

    name: str
    since: tuple[int, ...]
    what: str
    followed: bool = True


def older_than(change: Change) -> bool:
    """Whether the installed version is from before a change."""
    return change.since > INSTALLED


# Factor rules of Shardy, by the op whose rule it is
RESHAPE = Change(
    "stablehlo.reshape", (0, 12, 0),
    "dims that do not line up share a factor that moves between neighbours; factors of one side must be whole",
)  # fmt: skip
CONVOLUTION = Change(
    "stablehlo.convolution", (0, 12, 0), "windows and results that nothing is left for have factors of their own"
)
PAD = Change("stablehlo.pad", (0, 12, 0), "a dim that is padded and cut moves, even if it keeps its size")
UPDATE_SLICE = Change(
    "stablehlo.dynamic_update_slice",
    (0, 11, 2),
    "what is written, and what it is written into, move between neighbours",
)
RULES = {change.name: change for change in (RESHAPE, CONVOLUTION, PAD, UPDATE_SLICE)}

# Passes of Shardy
CONSTRAINTS = Change(
    "sdy-apply-sharding-constraints", (0, 12, 0), "a sharding of which all dims are open and empty says nothing"
)
FUNCTION_RESULTS = Change(
    "sdy-propagate-to-func-results",
    (0, 11, 2),
    "a result of main of which nothing was said has the sharding found for it",
)
VERIFICATION = Change("sdy-verify-unreduced-axes", (0, 11, 0), "a module that loses partial sums is refused")
CALLS = Change(
    "sdy-propagation-pipeline",
    (0, 12, 0),
    "constraints are applied before functions are put in the place of their calls",
)
UNEVEN = Change(
    "sdy-reshard-to-collectives", (0, 12, 0), "a dim that is padded to another size is gathered, or moved whole, first"
)
CALL_SUMS = Change(
    "sdy-insert-func-call-reshards", (0, 12, 0), "a call that loses a partial sum, or makes one, is left as it is"
)
EXPORT = Change("sdy-export-pipeline", (0, 12, 0), "by itself, it writes meshes into shardings")
LOCAL = Change(
    "sdy-convert-global-to-local",
    (0, 12, 0),
    "offsets are of 32 bits, parts of axes are counted right, and the module says how main is laid out",
)
PADDING = Change(
    "sdy-pad-for-divisibility",
    (0, 12, 0),
    "collectives, calls and reductions are padded, too, nothing of the conversion is left; rules stay on fewer ops",
)
RESOLVING = Change(
    "sdy-resolve-permutation-factors",
    (0, 12, 0),
    "updates that come into several parts, reshapes of dims that would not be padded alike, and convolutions in groups",
)
PASSES = (CONSTRAINTS, FUNCTION_RESULTS, VERIFICATION)
UNREDUCED_TEXT = Change("unreduced{…}", (0, 11, 0), "the sign = may be left out; there are unreduced=max{…} and min")

# JAX
CROSS = Change("jnp.cross", (0, 12, 0), "vectors have three components; those of two are refused, as by NumPy 2.5")
SINC = Change("jnp.sinc", (0, 12, 0), "0 at all whole numbers but 0, where it was a rounding")
HYPOT = Change("jnp.hypot", (0, 12, 0), "of a Python number and integers, weak")
SIGN = Change("lax.sign", (0, 12, 0), "a complex sign, which turns with the number, has a derivative")
NEXTAFTER = Change("lax.nextafter", (0, 12, 0), "has the derivative 1")
TRI = Change("jnp.tri", (0, 11, 2), "of the default width where no dtype is given, float32 before")
LOG2 = Change("jnp.log2", (0, 11, 2), "of a weak number, weak")
DIGAMMA = Change("lax.digamma", (0, 11, 2), "-inf at 0, where it was nan")
LOG1P = Change("lax.log1p of float64", (0, 11, 1), "right to the last bits also between -0.41 and -0.29")
GUMBEL = Change("random.gumbel", (0, 11, 1), 'mode="high" adds a larger number to keep away from 0')
GUMBEL_HALF = Change(
    "random.gumbel and logistic of float16",
    (0, 12, 0),
    "what keeps samples away from 0 is added to all of them, and rounded",
)
COMPLEX_MAXIMUM = Change(
    "lax.max", (0, 11, 2), "the largest of complex numbers has no derivative any more; ours has", followed=False
)
ABSTRACT_MESH = Change(
    "AbstractMesh", (0, 11, 1), "axes are Explicit where nothing is said; ours are Auto on every mesh", followed=False
)
UNREDUCED_KIND = Change(
    "PartitionSpec",
    (0, 11, 0),
    "prints unreduced_kind=sum; ours are always sums, and are printed without",
    followed=False,
)

CHANGES = (
    *RULES.values(), *PASSES, CALLS, CALL_SUMS, EXPORT, LOCAL, PADDING, RESOLVING, UNEVEN, UNREDUCED_TEXT,
    CROSS, SINC, HYPOT, SIGN, NEXTAFTER, TRI, LOG2, DIGAMMA, LOG1P, GUMBEL, GUMBEL_HALF,
    COMPLEX_MAXIMUM, ABSTRACT_MESH, UNREDUCED_KIND,
)  # fmt: skip
