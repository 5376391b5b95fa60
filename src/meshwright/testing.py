"""``meshwright.testing``: what a test can say about a compiled program.

>>> import meshwright as mw
>>> assert_comms(mw.jit(lambda x: x * 2).lower(1.0).compile(), exact=True)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from meshwright.api.check_partitioned import check_partitioned
from meshwright.compile.compiled import Compiled
from meshwright.core.source import here
from meshwright.errors import CommunicationError, MeshwrightError
from meshwright.partition.combine import dearest

KINDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute")


def assert_comms(compiled: Compiled, *, max_bytes: int | None = None, exact: bool = False, **counts: int) -> None:
    """Raise unless a compiled program has the given number of collectives of each kind that is named.

    With ``exact``, kinds that are not named must not occur. ``max_bytes`` bounds what a device receives in all. A
    collective in a loop counts as often as it runs, in a while loop of unknown length once; of the branches of a cond
    those collectives count that receive the most.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((4,), ("x",))
    >>> x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mesh, mw.P("x")))
    >>> assert_comms(mw.jit(lambda x: x.sum(0)).lower(x).compile(), all_reduce=1, all_gather=0, max_bytes=96)
    """
    if not isinstance(compiled, Compiled):
        raise MeshwrightError(
            f"assert_comms is given a {type(compiled).__name__}.",
            where=here(),
            why="what is sent is known of a program that is compiled for given arguments",
            fix="assert_comms(mw.jit(f).lower(*args).compile(), all_gather=1)",
        )
    for kind in counts:
        if kind not in KINDS:
            raise MeshwrightError(
                f"assert_comms knows no collective {kind!r}.",
                where=here(),
                why=f"the kinds are {', '.join(KINDS)}",
                fix="assert_comms(compiled, all_gather=1)",
            )
    found: Counter[str] = Counter()
    received = 0
    for collective in dearest(compiled.collectives):
        found[collective.kind] += collective.times
        received += collective.bytes_received_per_device * collective.times
    wanted = {**dict.fromkeys(KINDS, 0), **counts} if exact else counts
    wrong = [f"{kind} {found[kind]}, not {n}" for kind, n in wanted.items() if found[kind] != n]
    if max_bytes is not None and received > max_bytes:
        wrong.append(f"{received} bytes received per device, not at most {max_bytes}")
    if wrong:
        raise CommunicationError(
            "The program communicates in another way than it should.",
            where=here(),
            why="; ".join(wrong) + "\n" + compiled.explain(),
            fix="change the shardings, or the numbers given to assert_comms",
        )


__all__: list[Any] = ["KINDS", "assert_comms", "check_partitioned"]
