"""Times, sizes and lists of numbers for people to read."""

from __future__ import annotations

from collections.abc import Sequence


def time_text(seconds: float) -> str:
    """Three digits and a unit.

    >>> time_text(0.00123), time_text(4.5e-6), time_text(90), time_text(4.94e-12)
    ('1.23 ms', '4.5 µs', '90 s', '4.94 ps')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * scale:
            return f"{seconds / scale:.3g} {unit}" if seconds < 999.5 * scale else f"{seconds / scale:.0f} {unit}"
    return f"{seconds * 1e12:.3g} ps" if 0 < seconds < 0.0995e-9 else f"{seconds * 1e9:.3g} ns"


def size_text(nbytes: float) -> str:
    """Three digits and a unit.

    >>> size_text(1536), size_text(16_000_000_000)
    ('1.54 kB', '16 GB')
    """
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}" if nbytes < 999.5 * scale else f"{nbytes / scale:.0f} {unit}"
    return f"{nbytes:.0f} B"


def numbers_text(numbers: Sequence[int], most: int = 3) -> str:
    """Numbers in order, runs of them as ranges; of many runs the first, and how many numbers there are.

    >>> numbers_text([1, 2, 3, 7]), numbers_text(range(1, 40, 2))
    ('1-3, 7', '1, … (20)')
    """
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(texts) if len(texts) <= most else f"{texts[0]}, … ({len(numbers):,})"
