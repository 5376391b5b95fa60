"""Softmax a block of keys at a time.

Scores come a block of keys at a time. Beside the sum so far, ``acc``, its weights' sum ``total`` and the largest score
``top`` are kept per row; when a larger one comes, what was summed is scaled by exp(old top - new top).
"""

from __future__ import annotations

from typing import Any

import meshwright.numpy as mnp
from meshwright.pallas.ops.operands import require


def require_attention(q: Any, k: Any, v: Any) -> None:
    """Refuse operands that do not fit each other."""
    ranks = len({len(a.shape) for a in (q, k, v)}) == 1 and len(q.shape) >= 2
    require(
        ranks
        and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
        and q.shape[-1] == k.shape[-1]
        and k.shape[-2] == v.shape[-2]
        and min(*q.shape, *k.shape, *v.shape) > 0,
        f"Attention of q {list(q.shape)} to k {list(k.shape)} and v {list(v.shape)}.",
        "q and k have one last dim, k and v one number of keys, all three the same dims in front, and none is empty",
        "q of (…, rows, dim), k of (…, keys, dim), v of (…, keys, out)",
    )


def add_block(q: Any, k: Any, v: Any, acc_ref: Any, top_ref: Any, total_ref: Any, allowed: Any, scale: float) -> None:
    """Add what a block of keys and values contributes; ``allowed`` masks scores, or is None."""
    scores = mnp.matmul(q, mnp.swapaxes(k, -1, -2), preferred_element_type=mnp.float32) * scale
    if allowed is not None:
        scores = mnp.where(allowed, scores, mnp.full_like(scores, -mnp.inf))
    top = mnp.maximum(top_ref[...], mnp.max(scores, axis=-1, keepdims=True))
    # A row that may look at nothing yet has no largest score.
    base = mnp.where(top == -mnp.inf, mnp.zeros_like(top), top)
    weights = mnp.exp(scores - base)
    faded = mnp.exp(top_ref[...] - base)
    total_ref[...] = total_ref[...] * faded + mnp.sum(weights, axis=-1, keepdims=True)
    acc_ref[...] = acc_ref[...] * faded + mnp.matmul(weights, v.astype(mnp.float32))
    top_ref[...] = top


def start(acc_ref: Any, top_ref: Any, total_ref: Any) -> None:
    """Nothing was added yet."""
    acc_ref[...] = mnp.zeros_like(acc_ref)
    total_ref[...] = mnp.zeros_like(total_ref)
    top_ref[...] = mnp.full(top_ref.shape, -mnp.inf, mnp.float32)
