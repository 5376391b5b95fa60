"""The Threefry-2x32 hash with 20 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011)."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.engine.chunks import Kernel, map_chunks

# Five groups of four rounds; the key is added before the first group and after each.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_CHUNK = 1 << 15
_FEW = 4  # so few elements are hashed faster as Python integers

_LEFT = {r: np.array(r, np.uint32) for group in _ROTATIONS for r in group}
_RIGHT = {r: np.array(32 - r, np.uint32) for group in _ROTATIONS for r in group}
_GROUP = [np.array([n], np.uint32) for n in range(6)]


def threefry2x32(k1: Any, k2: Any, x1: Any, x2: Any) -> tuple[Any, ...]:
    """The two words that the key (k1, k2) makes of the counter (x1, x2), elementwise on uint32 arrays.

    >>> k = np.uint32(0)
    >>> [hex(int(y)) for y in threefry2x32(k, k, k, k)]
    ['0x6b200159', '0x99ba4efe']
    """
    operands = [np.asarray(x) for x in (k1, k2, x1, x2)]
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    if sum(x.size for x in operands) <= 4 * _FEW and np.prod(shape) <= _FEW:
        words = np.broadcast_arrays(*operands)
        hashed = [_hash_integers(*map(int, each)) for each in zip(*(w.ravel() for w in words), strict=True)]
        return tuple(np.array([h[n] for h in hashed], np.uint32).reshape(shape) for n in (0, 1))
    return map_chunks(_make_kernel, operands, (np.uint32, np.uint32), _CHUNK)


def _hash_integers(k1: int, k2: int, x: int, y: int) -> tuple[int, int]:
    keys = (k1, k2, k1 ^ k2 ^ _PARITY)
    x, y = x + k1 & 0xFFFFFFFF, y + k2 & 0xFFFFFFFF
    for group in range(5):
        for r in _ROTATIONS[group % 2]:
            x = x + y & 0xFFFFFFFF
            y = (y << r & 0xFFFFFFFF | y >> 32 - r) ^ x
        x = x + keys[(group + 1) % 3] & 0xFFFFFFFF
        y = y + keys[(group + 2) % 3] + group + 1 & 0xFFFFFFFF
    return x, y


def _make_kernel(length: int) -> Kernel:
    scratch = np.empty(length, np.uint32)
    parity = np.empty(length, np.uint32)

    def kernel(k1: Any, k2: Any, x1: Any, x2: Any, x: Any, y: Any) -> None:
        if k1.strides[0] == 0 and k2.strides[0] == 0:  # one key for all: one element of it is enough
            k1, k2 = k1[:1], k2[:1]
        k3, t = parity[: k1.size], scratch[: x.size]
        np.bitwise_xor(k1, k2, out=k3)
        np.bitwise_xor(k3, np.uint32(_PARITY), out=k3)
        keys = (k1, k2, k3)
        np.add(x1, k1, out=x)
        np.add(x2, k2, out=y)
        for group in range(5):
            for r in _ROTATIONS[group % 2]:
                np.add(x, y, out=x)
                np.left_shift(y, _LEFT[r], out=t)
                np.right_shift(y, _RIGHT[r], out=y)
                np.bitwise_or(y, t, out=y)
                np.bitwise_xor(y, x, out=y)
            np.add(x, keys[(group + 1) % 3], out=x)
            injected = np.add(keys[(group + 2) % 3], _GROUP[group + 1], out=t[: k1.size])
            np.add(y, injected, out=y)

    return kernel
