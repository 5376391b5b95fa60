"""What times assume, in a few lines for ``--help``."""

from __future__ import annotations

_RATES = {
    True: "Times of --mode exact are bounds at peak rates without launches; calibrated ones use what was measured.",
    False: "Times are at the chip's peak rates, without launches.",
}


def assumptions(modes: bool = True) -> str:
    """The end of a command's help.

    >>> assumptions().split(";")[0]
    'Assumed: Times of --mode exact are bounds at peak rates without launches'
    """
    return (
        f"Assumed: {_RATES[modes]} All groups of a mesh axis communicate at once; collectives over nodes are "
        "hierarchical, every GPU with its own adapter, and run beside compute without slowing it. Memory is what is "
        "alive at the same time; a transformer has 14 bytes of state a parameter, and nothing is computed again unless "
        "asked. docs/assumptions.md has all of it."
    )
