"""``auto_pbroadcast=False``: values of the user are never made varying, numbers in library functions always are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax, nn

MESH = mw.make_mesh((4,), ("i",))
ONE = P("i")
X = np.random.default_rng(0).uniform(0.5, 3.0, 12).astype(np.float32)  # a block of 3 for each device

LIBRARY: dict[str, Callable[[Any], Any]] = {
    "argsort": mnp.argsort,
    "sort": mnp.sort,
    "one_hot": lambda x: nn.one_hot(x.astype(int), 8),
    "take": lambda x: mnp.take(x, x.astype(int) % 2),
    "an array as index": lambda x: x[x.astype(int) * 0],
    "tril": lambda x: mnp.tril(mnp.outer(x, x)),
    "median": lambda x: mnp.median(x)[None],
    "percentile": lambda x: mnp.percentile(x, 30)[None],
    "modulo": lambda x: x % 3,
    "set": lambda x: x.at[0].set(0.0),
    "where": lambda x: mnp.where(x > 1, x, 0.0),
    "softmax": nn.softmax,
    "gelu": nn.gelu,
    "variance": lambda x: mnp.var(x)[None],
    "cumsum": mnp.cumsum,
    "clip": lambda x: mnp.clip(x, 0, 1),
    "pad": lambda x: mnp.pad(x, 1),
    "roll": lambda x: mnp.roll(x, 1),
    "linspace": lambda x: mnp.linspace(0, x[0], 3),
    "searchsorted": lambda x: mnp.searchsorted(mnp.sort(x), x),
    "bincount": lambda x: mnp.bincount(x.astype(int), length=4),
    "diag": mnp.diag,
    "unique": lambda x: mnp.unique(x, size=3),
    "nonzero": lambda x: mnp.nonzero(x, size=3)[0],
    "top_k": lambda x: lax.top_k(x, 2)[0],
    "logsumexp": lambda x: nn.logsumexp(x)[None],
    "gradient of a sort": mw.grad(lambda x: mnp.sum(mnp.sort(x) ** 2)),
    "gradient of a maximum": mw.grad(lambda x: mnp.max(x) ** 2),
    "a branch of numbers": lambda x: lax.cond(x[0] > 1, lambda: 1.0, lambda: 2.0)[None],
    "branches of numbers": lambda x: lax.switch(x[0].astype(int) % 3, [lambda: 1.0, lambda: 2.0, lambda: 3.0])[None],
    "a branch and a number": lambda x: lax.cond(x[0] > 1, lambda: x[0], lambda: 2.0)[None],
    "a count": lambda x: lax.fori_loop(0, x[0].astype(int), lambda i, c: c + 1.0, lax.pbroadcast(0.0, "i"))[None],
    "a count to a number": lambda x: lax.fori_loop(0, x[0].astype(int), lambda i, c: 1.0, 0.0)[None],
}


def mapped(function: Callable[..., Any], automatic: bool, specs: Any = ONE) -> Callable[..., Any]:
    return mw.shard_map(function, mesh=MESH, in_specs=specs, out_specs=P("i"), auto_pbroadcast=automatic)


@pytest.mark.parametrize("automatic", [True, False], ids=["automatic", "written"])
@pytest.mark.parametrize("name", LIBRARY)
def test_a_library_function_lifts_the_numbers_it_is_made_of(name: str, automatic: bool) -> None:
    function = LIBRARY[name]
    found = mapped(function, automatic)(X)
    if name == "a count":
        right = [np.floor(block[0])[None] for block in X.reshape(4, 3)]
    else:
        right = [np.asarray(function(mnp.asarray(block))) for block in X.reshape(4, 3)]
    np.testing.assert_allclose(found, np.concatenate(right), rtol=1e-5, atol=1e-6)


# With w from the user, the same on all devices.
USER: dict[str, Callable[[Any, Any], Any]] = {
    "operand": lambda w, x: x * w,
    "operand of where": lambda w, x: mnp.where(x > 1, x, w),
    "spread": lambda w, x: x + mnp.broadcast_to(w, (3,)),
    "branch that devices decide": lambda w, x: lax.cond(x[0] > 1, lambda: w, lambda: w * 2)[None],
    "operand of such a branch": lambda w, x: lax.cond(x[0] > 1, lambda w: w, lambda w: w * 2, w)[None],
    "one of two branches": lambda w, x: lax.cond(True, lambda: x[0], lambda: w)[None],
    "carry": lambda w, x: lax.scan(lambda c, row: (c + row, None), w, x)[0][None],
    "carry that is replaced": lambda w, x: lax.scan(lambda c, row: (row, None), w, x)[0][None],
    "carry of a counted loop": lambda w, x: lax.fori_loop(0, 3, lambda i, c: x[0], w)[None],
    "carry of a loop that devices end": lambda w, x: lax.while_loop(lambda c: c < x[0], lambda c: c + 1.0, w)[None],
    "in a loop": lambda w, x: lax.scan(lambda c, row: (c + row * w, None), x[0], x)[0][None],
}


@pytest.mark.parametrize("name", USER)
def test_a_value_of_the_user_is_never_lifted(name: str) -> None:
    function, specs = USER[name], (P(), P("i"))
    with pytest.raises(mw.MeshwrightError) as caught:
        mapped(function, False, specs)(np.float32(1.5), X)
    assert "lax.pbroadcast(x, 'i')" in caught.value.fix
    written = mapped(lambda w, x: function(lax.pbroadcast(w, "i"), x), False, specs)(np.float32(1.5), X)
    np.testing.assert_array_equal(written, mapped(function, True, specs)(np.float32(1.5), X))


def test_the_error_for_a_branch_says_what_to_write() -> None:
    with pytest.raises(mw.MeshwrightError) as caught:
        mapped(USER["branch that devices decide"], False, (P(), P("i")))(np.float32(1.5), X)
    assert caught.value.what == "A loop or a branch takes f32[] as a value that varies over i."
    assert caught.value.why == (
        "it is the same on all devices, and with auto_pbroadcast=False every pbroadcast is yours to write"
    )
    assert caught.value.fix == "lax.pbroadcast(x, 'i'), and the loop or the branch on that"
