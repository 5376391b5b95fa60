"""Results that no memory holds: one error of ours before any of it is asked for; views of one number cost nothing."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax, nn
from meshwright.core import limits

N, FAR = 10**6, 10**12
X, E, KEY = mnp.ones(N), mnp.ones((10, 10)), mw.random.key(0)
WIDE = mnp.broadcast_to(X, (N, N))

CALLS: dict[str, Callable[[], Any]] = {
    "sums": lambda: X[:, None] + X,
    "of a view": lambda: WIDE + 1,
    "outer": lambda: mnp.outer(X, X),
    "matmul": lambda: X[:, None] @ X[None],
    "einsum": lambda: mnp.einsum("i,j->ij", X, X),
    "tensordot": lambda: mnp.tensordot(X, X, 0),
    "kron": lambda: mnp.kron(X, X),
    "eye": lambda: mnp.eye(N),
    "tri": lambda: mnp.tri(N),
    "diag": lambda: mnp.diag(X),
    "vander": lambda: mnp.vander(X, N),
    "one_hot": lambda: nn.one_hot(mnp.arange(N), N),
    "tile": lambda: mnp.tile(E, (N, N)) + 1,
    "repeat by counts": lambda: mnp.repeat(X, mnp.full(N, N)),
    "pad": lambda: mnp.pad(X, FAR),
    "pad edge": lambda: mnp.pad(X, FAR, mode="edge"),
    "pad reflect": lambda: mnp.pad(mnp.ones(3), FAR, mode="reflect"),
    "pad wrap": lambda: mnp.pad(mnp.ones(3), FAR, mode="wrap"),
    "lax.pad": lambda: lax.pad(X, 0.0, [(0, 0, N)]),
    "arange": lambda: mnp.arange(FAR),
    "linspace": lambda: mnp.linspace(0, 1, FAR),
    "iota": lambda: lax.iota("int32", FAR),
    "indices": lambda: mnp.indices((N, N)),
    "tril_indices": lambda: mnp.tril_indices(N),
    "positions": lambda: E[mnp.ix_(mnp.zeros(N, int), mnp.zeros(N, int))],
    "concatenate": lambda: mnp.concatenate([WIDE, WIDE]),
    "stack": lambda: mnp.stack([WIDE, WIDE]),
    "sort": lambda: mnp.sort(WIDE),
    "cumsum": lambda: mnp.cumsum(WIDE),
    "astype": lambda: WIDE.astype(int),
    "copy": lambda: mnp.copy(WIDE),
    "tolist": lambda: WIDE.tolist(),
    "tobytes": lambda: WIDE.tobytes(),
    "at": lambda: mnp.zeros((N, N)).at[0].set(1),
    "bincount": lambda: mnp.bincount(mnp.array([1]), length=FAR),
    "nonzero": lambda: mnp.nonzero(E, size=FAR),
    "histogram": lambda: mnp.histogram(E, FAR),
    "fft": lambda: mnp.fft.fft(X, FAR),
    "conv": lambda: lax.conv(mnp.ones((1, 1, 3)), mnp.ones((1, 1, 3)), (1,), [(FAR, 0)]),
    "reduce_window": lambda: lax.reduce_window(mnp.ones(3), 0.0, lax.add, (1,), (1,), [(FAR, 0)]),
    "normal": lambda: mw.random.normal(KEY, (N, N)),
    "split": lambda: mw.random.split(KEY, FAR),
    "permutation": lambda: mw.random.permutation(KEY, FAR),
    "choice": lambda: mw.random.choice(KEY, 5, (N, N)),
    "jacrev": lambda: mw.jacrev(lambda x: x * x)(X),
    "jacfwd": lambda: mw.jacfwd(lambda x: x * x)(X),
    "hessian": lambda: mw.hessian(lambda x: (x * x).sum())(X),
    "vmap": lambda: mw.vmap(lambda a: mw.vmap(lambda b: a * b)(X))(X),
    "scan": lambda: lax.scan(lambda c, _: (c, X), 0.0, None, length=N),
    "jit": lambda: mw.jit(lambda x: x[:, None] + x)(X),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_no_memory_holds_is_one_error(call: Callable[[], Any]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(mw.MeshwrightError) as caught:
        call()
    assert caught.value.why and caught.value.fix and caught.value.where.startswith("test_too_large.py:")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_the_error_says_how_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.core.limits.memory_bytes", lambda: 2 * 10**9)
    with pytest.raises(mw.MeshwrightError) as caught:
        mnp.repeat(X, mnp.full(N, 1000))
    assert str(caught.value) == (
        "A result of mnp.repeat does not fit into memory.\n"
        f"  at:   {caught.value.where}\n"
        "  why:  i32[1000000000] takes 4.0 GB, and there are 2.0 GB\n"
        "  fix:  smaller arrays, or the same in parts: lax.map(f, rows)"
    )


def test_one_number_everywhere_takes_no_memory() -> None:
    assert mnp.zeros((N, N)).shape == mnp.tile(X, N).reshape(N, N).shape == (N, N)
    assert float(mnp.ones((N, N))[3, 4]) == 1.0


GROUPS = {
    "of its own": ("0::/a/b", {"a/b/memory.max": "1000", "a/memory.max": "max"}, 1000),
    "around it": ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "2000"}, 2000),
    "seen as the root": ("0::/", {"memory.max": "3000"}, 3000),
    "not to be seen": ("0::/../c", {"memory.max": "3000"}, 3000),
    "of the first kind": ("3:cpu:/\n4:memory,pids:/a", {"memory/a/memory.limit_in_bytes": "4000"}, 4000),
    "without a limit": ("0::/a", {"a/memory.max": "max"}, None),
    "odd": ("what\n\n0::/a", {"a/memory.max": "much"}, None),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_container_has_as_much_memory_as_it_is_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, files, expected = GROUPS[name]
    (tmp_path / "own").write_text(own)
    for path, text in files.items():
        (tmp_path / "groups" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / path).write_text(text)
    plain = limits.memory_bytes()
    monkeypatch.setattr(limits, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(limits, "_GROUPS", tmp_path / "groups")
    assert limits.memory_bytes() == (expected or plain)
    if expected is not None:
        with pytest.raises(mw.MeshwrightError, match="does not fit into memory"):
            mnp.copy(mnp.ones(expected))
