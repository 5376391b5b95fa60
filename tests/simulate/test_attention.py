"""Fused attention: what is one, what it computes, costs and holds; forward, backward, in loops; and what is none."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax, nn
from meshwright.core.program import Program
from meshwright.engine.compile import compile_program
from meshwright.hardware import roofline
from meshwright.simulate import simulate
from meshwright.simulate.attention import fuse_attention
from meshwright.simulate.forgotten import forget_scores
from meshwright.simulate.fusion import fuse
from meshwright.simulate.transformer import Strategy
from meshwright.simulate.transformer.program import positions_of
from meshwright.transform.stack import inline_calls
from tests.simulate.models import example
from tests.simulate.test_fusion import run_by_kernels

BATCH, QUERIES, KEYS, HEADS, DIM = 2, 48, 64, 4, 16


def struct(*shape: int, dtype: str = "float32") -> Any:
    return mw.ShapeDtypeStruct(shape, dtype)


def causal(queries: int, keys: int) -> Any:
    return mnp.arange(queries)[:, None] >= mnp.arange(keys)[None, :]


def scores(q: Any, k: Any) -> Any:
    return mnp.einsum("bqhd,bkhd->bhqk", q, k) * DIM**-0.5


def mixed(p: Any, v: Any) -> Any:
    return mnp.einsum("bhqk,bkhd->bqhd", p, v)


def plain(q: Any, k: Any, v: Any) -> Any:
    return mixed(nn.softmax(scores(q, k)), v)


def masked(q: Any, k: Any, v: Any) -> Any:
    return mixed(nn.softmax(mnp.where(causal(q.shape[1], k.shape[1]), scores(q, k), -1e9)), v)


def by_matmul(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (mnp.swapaxes(x, 1, 2) for x in (q, k, v))
    return mnp.swapaxes(nn.softmax((q / DIM**0.5) @ mnp.swapaxes(k, -1, -2)) @ v, 1, 2)


def keys_first(q: Any, k: Any, v: Any) -> Any:
    turned = mnp.einsum("bkhd,bqhd->bhkq", k, q)
    return mnp.einsum("bkhd,bhkq->bqhd", v, nn.softmax(turned, axis=2))


def by_hand(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    e = mnp.exp(s - s.max(-1, keepdims=True))
    return mixed(e, v) / mnp.einsum("bhq->bqh", e.sum(-1))[..., None]


def by_logarithm(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    return mixed(mnp.exp(s - nn.logsumexp(s, axis=-1, keepdims=True)), v)


def soft_cap(q: Any, k: Any, v: Any) -> Any:
    return mixed(nn.softmax(mnp.where(causal(q.shape[1], k.shape[1]), 30.0 * mnp.tanh(scores(q, k) / 30.0), -1e30)), v)


def slopes(q: Any, k: Any, v: Any) -> Any:
    distance = (mnp.arange(k.shape[1])[None, :] - mnp.arange(q.shape[1])[:, None]).astype("float32")
    slope = 2.0 ** -mnp.arange(1, q.shape[2] + 1).astype("float32")
    return mixed(nn.softmax(scores(q, k) + slope[:, None, None] * distance), v)


def one_head(q: Any, k: Any, v: Any) -> Any:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return nn.softmax(q @ k.T) @ v

    return mw.vmap(mw.vmap(attend, 1, 1))(q, k, v)


def grouped(q: Any, k: Any, v: Any) -> Any:
    k, v = k[:, :, ::2], v[:, :, ::2]
    groups = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
    p = nn.softmax(mnp.einsum("bqhgd,bkhd->bhgqk", groups, k))
    return mnp.einsum("bhgqk,bkhd->bqhgd", p, v).reshape(q.shape)


def repeated(q: Any, k: Any, v: Any) -> Any:
    k, v = (mnp.repeat(x[:, :, ::2], 2, axis=2) for x in (k, v))
    return plain(q, k, v)


FORMS = {
    "plain": plain, "masked": masked, "by matmul": by_matmul, "keys first": keys_first, "by hand": by_hand,
    "by logarithm": by_logarithm, "soft cap": soft_cap, "slopes": slopes, "one head": one_head, "grouped": grouped,
    "repeated": repeated, "nn": partial(nn.dot_product_attention, is_causal=True),
    "lower precision": lambda q, k, v: mixed(nn.softmax(scores(q, k).astype("float32")).astype(q.dtype), v),
}  # fmt: skip
ALL_FORMS = pytest.mark.parametrize("name", FORMS)
Q, K = struct(BATCH, QUERIES, HEADS, DIM), struct(BATCH, KEYS, HEADS, DIM)


def gradient(function: Any) -> Any:
    return mw.grad(lambda *args: (function(*args).astype("float32") ** 2).sum(), argnums=(0, 1, 2))


def traced(function: Any, *args: Any) -> Program:
    return inline_calls(mw.make_program(function)(*args))


def tasks(program: Program, **options: Any) -> dict[str, Any]:
    return {task.op: task for task, _ in mw.simulate(program, "h100", **options).leaves()}


def numbers(program: Program, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.normal(size=t.shape), t.dtype) for t in program.in_types]


# What is computed


@ALL_FORMS
@pytest.mark.parametrize("backward", [False, True])
def test_the_program_with_fused_attention_computes_the_same(name: str, backward: bool) -> None:
    program = traced(gradient(FORMS[name]) if backward else FORMS[name], Q, K, K)
    fused, found = fuse_attention(program)
    assert [one.backward for one in found] == [False, True][: 1 + backward]
    args = numbers(program)
    expected = compile_program(program)(*args)
    for a, b in zip(compile_program(fused)(*args), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(run_by_kernels(fused, args, found), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# What it costs


@ALL_FORMS
def test_forward_is_one_kernel_of_two_products_that_never_writes_a_score(name: str) -> None:
    program = traced(FORMS[name], Q, K, K)
    found = mw.simulate(program, "h100")
    kernel = tasks(program)["attention"]
    pairs = BATCH * HEADS * QUERIES * KEYS
    visible = np.tri(QUERIES, KEYS).mean() if name in ("masked", "soft cap", "nn") else 1.0
    assert kernel.cost.matmul_flops == pytest.approx(visible * 4 * pairs * DIM)
    scores_bytes = 4 * pairs
    assert found.memory.peak_bytes < sum(t.nbytes for t in (*program.in_types, *program.out_types)) + scores_bytes
    assert all(v.type.size < pairs for task, _ in found.leaves() for v in task.writes)


@ALL_FORMS
def test_backward_computes_weights_again_and_keeps_none(name: str) -> None:
    program = traced(gradient(FORMS[name]), Q, K, K)
    found, kernels = mw.simulate(program, "h100"), tasks(program)
    pairs = BATCH * HEADS * QUERIES * KEYS
    assert kernels["attention gradient"].cost.matmul_flops == 2.5 * kernels["attention"].cost.matmul_flops
    assert all(v.type.size < pairs for task, _ in found.leaves() for v in task.writes)


@pytest.mark.parametrize("chip", ["tpu v5e", "h100"])
@pytest.mark.parametrize("kv", [16, 2])
@pytest.mark.parametrize("is_causal", [False, True])
def test_forward_takes_what_the_closed_form_says(chip: str, kv: int, is_causal: bool) -> None:
    attend = partial(nn.dot_product_attention, is_causal=is_causal)
    for queries, keys in ((1, 4096), (64, 8192), (2048, 2048), (4096, 4096)):
        shape = struct(2, queries, 16, 128, dtype="bfloat16")
        both = struct(2, keys, kv, 128, dtype="bfloat16")
        if is_causal and queries != keys:
            continue
        found = mw.simulate(mw.make_program(attend)(shape, both, both), chip)
        form = roofline.attention(queries, keys, chip, heads=16, kv_heads=kv, batch=2, causal=is_causal)
        assert found.seconds == pytest.approx(form.seconds, rel=1e-3)
        assert found.memory.peak_bytes == form.bytes


def test_backward_reads_and_writes_what_flash_attention_does() -> None:
    queries, heads, kv, dim = 4096, 16, 4, 128
    shape, both = struct(1, queries, heads, dim, dtype="bfloat16"), struct(1, queries, kv, dim, dtype="bfloat16")

    def given(q: Any, k: Any, v: Any, do: Any) -> Any:
        return mw.vjp(nn.dot_product_attention, q, k, v)[1](do)

    def with_result(q: Any, k: Any, v: Any, do: Any) -> Any:
        out, back = mw.vjp(nn.dot_product_attention, q, k, v)
        return out, back(do * out)

    kernels = tasks(traced(with_result, shape, both, both, shape))
    like_q, like_k = 2 * queries * heads * dim, 2 * queries * kv * dim
    statistics = 2 * 4 * queries * heads  # the largest score of each query, and the sum of its exponentials
    assert kernels["attention"].cost.nbytes == 2 * like_q + 2 * like_k + statistics
    cost = kernels["attention gradient"].cost
    assert cost.nbytes == 4 * like_q + 4 * like_k + statistics  # q, do, o, dq; k, v, dk, dv
    assert cost.matmul_flops == 5 * 2 * queries**2 * heads * dim
    assert list(tasks(traced(given, shape, both, both, shape))) == ["attention gradient"]  # nobody wants the result


def test_caches_of_one_byte_are_read_as_they_are_stored() -> None:
    def decode(q: Any, k: Any, v: Any) -> Any:
        p = nn.softmax(mnp.einsum("bhd,bkhd->bhk", q, k.astype(q.dtype)).astype("float32")).astype(q.dtype)
        return mnp.einsum("bhk,bkhd->bhd", p, v.astype(q.dtype))

    for dtype, size in (("bfloat16", 2.0), ("int8", 1.0), ("int4", 0.5)):
        cache = struct(8, 4096, 16, 128, dtype=dtype)
        program = mw.make_program(decode)(struct(8, 16, 128, dtype="bfloat16"), cache, cache)
        nbytes = 2 * size * 8 * 4096 * 16 * 128 + 2 * 2 * 8 * 16 * 128
        found = mw.simulate(program, "h100")
        assert found.seconds == pytest.approx(nbytes / mw.hardware.get("h100").hbm_bytes_per_s)
        assert found.memory.peak_bytes == nbytes


# Metamorphic


@pytest.mark.parametrize("mode", ["exact", "calibrated"])
def test_fused_attention_is_never_slower_and_never_holds_more(mode: str) -> None:
    rng = np.random.default_rng(1)
    forms = list(FORMS.values())
    for _ in range(12):
        queries, keys = (int(2 ** rng.integers(5, 12)) for _ in range(2))
        heads, dim = int(2 ** rng.integers(1, 4)), int(2 ** rng.integers(4, 8))
        dtype, form = rng.choice(["bfloat16", "float32"]), forms[rng.integers(len(forms))]
        shapes = [struct(2, n, heads, dim, dtype=str(dtype)) for n in (queries, keys, keys)]
        for function, chip in product((form, gradient(form)), ("tpu v5e", "h200")):
            program = mw.make_program(function)(*shapes)
            on, off = (mw.simulate(program, chip, mode=mode, flash=flash) for flash in (True, False))
            assert on.seconds <= off.seconds * (1 + 1e-9), (queries, keys, heads, dim, dtype, form, chip)
            assert on.memory.peak_bytes <= off.memory.peak_bytes
            for flash in (True, False):
                assert mw.simulate.memory(program, flash=flash).peak_bytes <= off.memory.peak_bytes


@pytest.mark.parametrize("chip", ["a100", "h100", "h200"])
@pytest.mark.parametrize("rows", [(128, 128), (512, 512), (1, 4096), (64, 2048)])
def test_where_fused_attention_would_be_slower_each_product_is_a_kernel(rows: tuple[int, int], chip: str) -> None:
    """Few rows keep few parts of a chip busy: what is predicted is the faster of the two, in time and in memory."""
    for form, (heads, dim), batch in product((plain, masked), ((8, 64), (16, 128), (4, 256)), (1, 8)):
        shapes = [struct(batch, n, heads, dim, dtype="bfloat16") for n in (rows[0], rows[1], rows[1])]
        for function in (form, gradient(form)):
            program = mw.make_program(function)(*shapes)
            on, off = (mw.simulate(program, chip, mode="calibrated", flash=flash) for flash in (True, False))
            assert on.seconds <= off.seconds * (1 + 1e-9), (heads, dim, batch)
            assert on.memory.peak_bytes <= off.memory.peak_bytes
            if not any(task.op.startswith("attention") for task, _ in on.leaves()):
                assert (on.seconds, on.memory) == (off.seconds, off.memory)


@pytest.mark.parametrize("name", ["mlp", "convnet", "moe"])
def test_a_program_without_attention_stays_as_it_is(name: str) -> None:
    program = inline_calls(example(name, scan=False)[0])
    assert fuse_attention(program) == (program, [])
    on, off = (mw.simulate(program, "h100", flash=flash) for flash in (True, False))
    assert (on.seconds, on.memory) == (off.seconds, off.memory)


def test_without_flash_every_product_is_a_kernel() -> None:
    program = traced(gradient(masked), Q, K, K)
    off = mw.simulate(program, "h100", flash=False)
    names = [task.op for task, _ in off.leaves()]
    assert names.count("dot_general") == 6 and "attention" not in names
    assert off.memory == mw.simulate.memory(program, flash=False)
    assert [len(k.eqns) for k in off.block.kernels.kernels] == [len(k.eqns) for k in fuse(program).kernels]


# What is none


def no_softmax(q: Any, k: Any, v: Any) -> Any:
    return mixed(mnp.tanh(scores(q, k)), v)


def scores_too(q: Any, k: Any, v: Any) -> Any:
    p = nn.softmax(scores(q, k))
    return mixed(p, v), p


def raw_scores_too(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    return mixed(nn.softmax(s), v), s


def talking_heads(q: Any, k: Any, v: Any) -> Any:
    p = nn.softmax(mnp.einsum("bhqk,hg->bgqk", scores(q, k), mnp.ones((HEADS, HEADS))))
    return mixed(p, v)


def over_queries(q: Any, k: Any, v: Any) -> Any:
    return mixed(nn.softmax(scores(q, k), axis=2), v)


def sorted_weights(q: Any, k: Any, v: Any) -> Any:
    return mixed(mnp.sort(nn.softmax(scores(q, k)), axis=-1), v)


def shifted(q: Any, k: Any, v: Any) -> Any:
    return mixed(nn.softmax(scores(q, k))[..., ::-1], v)


NONE = {
    "no softmax": no_softmax, "weights returned": scores_too, "scores returned": raw_scores_too,
    "talking heads": talking_heads, "softmax over queries": over_queries, "sorted": sorted_weights,
    "reversed": shifted,
}  # fmt: skip


@pytest.mark.parametrize("name", NONE)
def test_what_needs_its_scores_is_not_fused(name: str) -> None:
    program = traced(NONE[name], Q, K, K)
    assert fuse_attention(program) == (program, [])


def test_a_loss_over_words_is_no_attention() -> None:
    def loss(x: Any, table: Any, words: Any) -> Any:
        logits = x @ table.T
        return -(nn.log_softmax(logits) * words).sum()

    for width in (64, 1024):
        args = struct(128, width), struct(512, width), struct(128, 512)
        assert fuse_attention(traced(mw.grad(loss, (0, 1)), *args))[1] == []


def test_heads_that_do_not_fit_on_the_chip_are_not_fused() -> None:
    for dim, count in ((512, 1), (1024, 0)):
        args = [struct(1, 2048, 1, dim)] * 3
        assert len(fuse_attention(traced(nn.dot_product_attention, *args))[1]) == count


def test_dropout_keeps_its_mask() -> None:
    def dropped(q: Any, k: Any, v: Any, key: Any) -> Any:
        p = nn.softmax(scores(q, k))
        keep = mw.random.bernoulli(key, 0.9, p.shape)
        return mixed(mnp.where(keep, p / 0.9, 0.0), v)

    key = mw.ShapeDtypeStruct((2,), "uint32")
    program = traced(lambda q, k, v, key: gradient(partial(dropped, key=key))(q, k, v), Q, K, K, key)
    found = mw.simulate(program, "h100")
    pairs = BATCH * HEADS * QUERIES * KEYS
    kernels = {task.op: task for task, _ in found.leaves()}
    for op in ("attention", "attention gradient"):
        assert [v.type.short() for v in kernels[op].reads if v.type.size == pairs] == [
            f"bool[{BATCH},{HEADS},{QUERIES},{KEYS}]"
        ]


# Masks


@pytest.mark.parametrize("queries, keys", [(64, 64), (48, 200), (1024, 1024), (512, 2048)])
def test_the_share_of_pairs_that_a_mask_leaves(queries: int, keys: int) -> None:
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    masks: dict[str, Any] = {
        "causal": lambda i, j: i >= j,
        "strictly": lambda i, j: j < i + 1,
        "from the end": lambda i, j: i + (keys - queries) >= j,
        "window": lambda i, j: (i >= j) & (i - j < keys // 4),
        "all": lambda i, j: i >= -j,
    }
    for name, mask in masks.items():

        def attend(q: Any, k: Any, v: Any, mask: Any = mask) -> Any:
            seen = mask(mnp.arange(queries)[:, None], mnp.arange(keys)[None, :])
            return mixed(nn.softmax(mnp.where(seen, scores(q, k), -mnp.inf)), v)

        def added(q: Any, k: Any, v: Any, mask: Any = mask) -> Any:
            seen = mask(mnp.arange(queries)[:, None], mnp.arange(keys)[None, :])
            return mixed(nn.softmax(scores(q, k) + mnp.where(seen, 0.0, -1e9)), v)

        def constant(q: Any, k: Any, v: Any, mask: Any = mask) -> Any:
            return mixed(nn.softmax(mnp.where(mnp.array(mask(i, j)), scores(q, k), -1e9)), v)

        for function in (attend, added, constant):
            args = struct(1, queries, 2, DIM), struct(1, keys, 2, DIM), struct(1, keys, 2, DIM)
            (found,) = fuse_attention(traced(function, *args))[1]
            assert found.visible == pytest.approx(np.mean(mask(i, j)), abs=0.01), name


# Ways to build a mask inside of the function: of scores, with queries and keys, to masked scores.
BUILT: dict[str, Any] = {
    "tril of ones": lambda s, q, k: mnp.where(mnp.tril(mnp.ones((q, k))), s, -1e30),
    "tril of trues": lambda s, q, k: mnp.where(mnp.tril(mnp.ones((q, k), bool)), s, -mnp.inf),
    "tril of ints": lambda s, q, k: mnp.where(mnp.tril(mnp.ones((q, k), "int32")) == 1, s, -1e30),
    "tril is zero": lambda s, q, k: mnp.where(mnp.tril(mnp.ones((q, k))) == 0, -1e30, s),
    "a diagonal below": lambda s, q, k: mnp.where(mnp.tril(mnp.ones((q, k)), -3), s, -1e30),
    "triu of trues": lambda s, q, k: mnp.where(mnp.triu(mnp.ones((q, k), bool), 1), -1e30, s),
    "triu that is added": lambda s, q, k: s + mnp.triu(mnp.full((q, k), -1e30), 1),
    "one less tril": lambda s, q, k: s + (1 - mnp.tril(mnp.ones((q, k)))) * -1e9,
    "band": lambda s, q, k: mnp.where(mnp.tril(mnp.ones((q, k))) * mnp.triu(mnp.ones((q, k)), -9) > 0, s, -1e30),
    "tri": lambda s, q, k: mnp.where(mnp.tri(q, k, dtype=bool), s, -1e30),
    "a corner of a buffer": lambda s, q, k: mnp.where(mnp.tril(mnp.ones((2 * q, 2 * k)))[:q, :k] == 0, -1e30, s),
    "every other row": lambda s, q, k: mnp.where(mnp.tril(mnp.ones((2 * q, k)))[::2], s, -1e30),
    "heads of a buffer": lambda s, q, k: mnp.where(mnp.tril(mnp.ones((1, 1, q, k))), s, -1e30),
    "counted": lambda s, q, k: mnp.where(mw.lax.iota("int32", q)[:, None] >= mw.lax.iota("int32", k)[None], s, -1e30),
}


@pytest.mark.parametrize("queries, keys", [(64, 64), (48, 200), (512, 512)])
@pytest.mark.parametrize("name", BUILT)
def test_a_mask_that_the_function_builds_hides_what_it_masks(name: str, queries: int, keys: int) -> None:
    """The share that is found without running is that of the mask's values, forward and backward."""
    built = BUILT[name]

    def attend(q: Any, k: Any, v: Any) -> Any:
        return mixed(nn.softmax(built(scores(q, k), queries, keys)), v)

    args = struct(1, queries, 2, DIM), struct(1, keys, 2, DIM), struct(1, keys, 2, DIM)
    seen = np.mean(np.asarray(built(mnp.zeros((1, 2, queries, keys)), queries, keys)) > -1e4)
    assert seen < 0.95
    gradient = mw.grad(lambda *args: mnp.sum(attend(*args).astype("float32")), argnums=(0, 1, 2))
    for function in (attend, gradient):
        for found in fuse_attention(traced(function, *args))[1]:
            assert found.visible == pytest.approx(seen, abs=0.01)


def test_a_mask_that_is_not_known_hides_nothing() -> None:
    def from_a_position(q: Any, k: Any, v: Any, start: Any) -> Any:
        seen = start + mnp.arange(q.shape[1])[:, None] >= mnp.arange(k.shape[1])[None, :]
        return mixed(nn.softmax(mnp.where(seen, scores(q, k), -1e9)), v)

    def given(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return mixed(nn.softmax(mnp.where(mask, scores(q, k), -1e9)), v)

    for function, argument in ((from_a_position, struct(dtype="int32")), (given, struct(QUERIES, KEYS, dtype="bool"))):
        (found,) = fuse_attention(traced(function, Q, K, K, argument))[1]
        assert found.visible == 1.0


# In loops


def test_layers_in_a_loop_have_fused_attention_each() -> None:
    def layers(x: Any, ws: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            q, k, v = (mnp.einsum("bld,dhk->blhk", x, w[n]) for n in range(3))
            return x + nn.dot_product_attention(q, k, v).reshape(x.shape), None

        return lax.scan(layer, x, ws)[0]

    x, ws = struct(2, 256, 64), struct(6, 3, 64, 4, 16)
    program = mw.make_program(layers)(x, ws)
    found = mw.simulate(program, "h100")
    assert {task.op: times for task, times in found.leaves()}["attention"] == 6
    assert found.memory.temporary_bytes < 2 * 4 * 256 * 256 * 4


def test_scores_that_are_computed_again_are_not_the_models_flops() -> None:
    shape = struct(1, 4096, 16, 128, dtype="bfloat16")
    found = mw.simulate(mw.make_program(gradient(nn.dot_product_attention))(shape, shape, shape), "h100")
    assert found.hfu / found.mfu == pytest.approx(7 / 6)


def layer_of(attend: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        q, k, v = (mnp.einsum("bld,dhk->blhk", x, w[n]) for n in range(3))
        return x + mnp.einsum("blhk,dhk->bld", attend(q, k, v), w[3])

    return layer


def crossed(attend: Any) -> Any:
    """A layer that attends to itself and to a memory, which all layers share."""

    def layer(x: Any, w: Any, memory: Any) -> Any:
        x = layer_of(attend)(x, w)
        q = mnp.einsum("bld,dhk->blhk", x, w[0])
        return x + mnp.einsum("blhk,dhk->bld", attend(q, memory, memory), w[1])

    return layer


LENGTH, WIDTH, LAYERS = 64, 32, 5
STACK = struct(LAYERS, 4, WIDTH, HEADS, DIM)
ROWS = struct(BATCH, LENGTH, WIDTH)


def in_a_loop(layer: Any, *shared: Any) -> Any:
    def loss(x: Any, ws: Any) -> Any:
        return (lax.scan(lambda x, w: (layer(x, w, *shared), None), x, ws)[0] ** 2).sum()

    return loss


def wide_values(program: Program, pairs: int) -> list[str]:
    """The types of values as large as scores, in whatever loop, that kernels write."""
    found = mw.simulate(program, "h100")
    types = [v.type for task, _ in found.leaves() for v in task.writes]
    return [t.short() for t in types if t.size >= pairs and t.ndim > 3 and t.shape[-1] == LENGTH]


@ALL_FORMS
def test_no_loop_hands_scores_to_that_of_its_backward_pass(name: str) -> None:
    program = traced(mw.grad(in_a_loop(layer_of(FORMS[name])), (0, 1)), ROWS, STACK)
    found = forget_scores(program)
    args = [0.3 * x for x in numbers(program)]
    for a, b in zip(compile_program(found)(*args), compile_program(program)(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    pairs = BATCH * HEADS * LENGTH * LENGTH
    kept = [v.type for eqn in found.eqns if eqn.op.name == "scan" for v in eqn.outputs]
    assert all(t.size < LAYERS * pairs for t in kept)
    assert wide_values(program, pairs) == []
    on, off = (mw.simulate(program, "h100", flash=flash) for flash in (True, False))
    assert on.seconds < off.seconds and on.memory.peak_bytes < off.memory.peak_bytes - LAYERS * pairs * 4
    assert mw.simulate.memory(program).peak_bytes < mw.simulate.memory(program, flash=False).peak_bytes
    ops = {task.op: times for task, times in on.leaves()}
    assert (ops["attention"], ops["attention gradient"]) == (LAYERS, LAYERS)


def test_a_loop_with_two_attentions_forgets_the_scores_of_both() -> None:
    memory = struct(BATCH, LENGTH, HEADS, DIM)

    def loss(x: Any, ws: Any, memory: Any) -> Any:
        return in_a_loop(crossed(masked), memory)(x, ws)

    program = traced(mw.grad(loss, (0, 1, 2)), ROWS, STACK, memory)
    found = forget_scores(program)
    args = [0.3 * x for x in numbers(program)]
    for a, b in zip(compile_program(found)(*args), compile_program(program)(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert wide_values(program, BATCH * HEADS * LENGTH * LENGTH) == []


@pytest.mark.parametrize("policy", ["nothing", "dots"])
def test_layers_that_are_computed_again_keep_no_scores_either(policy: str) -> None:
    policies = mw.checkpoint_policies
    kept = policies.nothing_saveable if policy == "nothing" else policies.dots_saveable
    program = traced(mw.grad(in_a_loop(mw.checkpoint(layer_of(masked), policy=kept)), (0, 1)), ROWS, STACK)
    found = forget_scores(program)
    args = [0.3 * x for x in numbers(program)]
    for a, b in zip(compile_program(found)(*args), compile_program(program)(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert wide_values(program, BATCH * HEADS * LENGTH * LENGTH) == []


def test_steps_that_are_accumulated_in_a_loop_keep_no_scores() -> None:
    gradients = mw.grad(in_a_loop(layer_of(masked)), 1)

    def accumulated(xs: Any, ws: Any) -> Any:
        def add(total: Any, x: Any) -> Any:
            return total + gradients(x, ws), None

        return lax.scan(add, mnp.zeros(ws.shape, ws.dtype), xs)[0]

    program = traced(accumulated, struct(3, BATCH, LENGTH, WIDTH), STACK)
    assert wide_values(program, BATCH * HEADS * LENGTH * LENGTH) == []
    found = mw.simulate(program, "h100")
    assert {task.op: times for task, times in found.leaves()}["attention gradient"] == 3 * LAYERS


def test_scores_that_a_loop_returns_stay() -> None:
    def layers(x: Any, ws: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            q, k, v = (mnp.einsum("bld,dhk->blhk", x, w[n]) for n in range(3))
            p = nn.softmax(scores(q, k))
            return x + mnp.einsum("blhk,dhk->bld", mixed(p, v), w[3]), p

        return lax.scan(layer, x, ws)

    program = traced(layers, ROWS, STACK)
    assert forget_scores(program) is program
    assert "attention" not in {task.op for task, _ in mw.simulate(program, "h100").leaves()}


@pytest.mark.parametrize("backward", [False, True])
def test_products_are_as_many_as_xla_counts(backward: bool) -> None:
    import jax

    def attend(nn: Any, numpy: Any, q: Any, k: Any, v: Any) -> Any:
        p = nn.softmax(numpy.einsum("bqhd,bkhd->bhqk", q, k) * 0.125, axis=-1)
        return numpy.einsum("bhqk,bkhd->bqhd", p, v)

    ours, theirs = partial(attend, nn, mnp), partial(attend, jax.nn, jax.numpy)
    if backward:
        ours = gradient(ours)
        theirs = jax.grad(lambda *args, f=theirs: (f(*args) ** 2).sum(), (0, 1, 2))
    shape = (2, 256, 4, 64)
    cost = jax.jit(theirs).lower(*[jax.ShapeDtypeStruct(shape, "float32")] * 3).compile().cost_analysis()
    program = mw.make_program(ours)(*[struct(*shape)] * 3)
    on, off = (mw.simulate(program, "h100", flash=flash) for flash in (True, False))
    assert off.product_flops == pytest.approx(cost["flops"], rel=0.03)  # which has exponentials and sums, too
    products = 6 if backward else 2
    assert on.product_flops == off.product_flops * (products + backward) / products
    moved, whole = (sum(times * task.cost.nbytes for task, times in run.leaves()) for run in (on, off))
    assert moved < whole < cost["bytes accessed"]


def test_a_mask_that_hides_nothing() -> None:
    def attend(q, k, v):
        scores = q @ k.T
        return mw.nn.softmax(mnp.where(mnp.ones(scores.shape, bool), scores, -1e9)) @ v

    x = mw.ShapeDtypeStruct((2048, 64), "bfloat16")
    masked, plain = (
        mw.simulate(mw.make_program(f)(x, x, x), "h100") for f in (attend, lambda q, k, v: mw.nn.softmax(q @ k.T) @ v)
    )
    assert masked.seconds == pytest.approx(plain.seconds, rel=0.05)


@pytest.mark.parametrize("devices", [2, 3, 8])
@pytest.mark.parametrize("balanced", [True, False])
def test_a_mask_that_depends_on_the_device_leaves_what_the_busiest_one_computes(devices: int, balanced: bool) -> None:
    """Queries in parts along an axis, in blocks or with a block from either end: against every device's own mask."""
    length, mesh = 96, mw.make_mesh((devices,), ("context",))
    whole = devices * length
    strategy = Strategy(context=devices)

    def places(place: Any) -> Any:
        return positions_of(place, length, strategy) if balanced else place * length + mnp.arange(length)

    def attend(q: Any, k: Any, v: Any) -> Any:
        seen = places(mw.lax.axis_index("context"))[:, None] >= mnp.arange(whole)[None, :]
        return mixed(nn.softmax(mnp.where(seen, scores(q, k), -1e9)), v)

    specs = mw.P(None, "context"), mw.P(), mw.P()
    sharded = mw.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=mw.P(None, "context"))
    args = struct(1, whole, 2, DIM), struct(1, whole, 2, DIM), struct(1, whole, 2, DIM)
    found = simulate(mw.make_program(sharded)(*args), "h100")
    own = [np.mean(np.asarray(places(n))[:, None] >= np.arange(whole)) for n in range(devices)]
    pairs = 2 * length * whole
    assert found.product_flops == pytest.approx(max(own) * 4 * pairs * DIM, rel=0.02)
    if balanced:
        assert own == pytest.approx([np.mean(np.tri(whole))] * devices, rel=1e-9)
