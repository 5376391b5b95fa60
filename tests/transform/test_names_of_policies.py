"""A name in a policy that no value has is told where one looks at what is kept."""

from __future__ import annotations

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import ad_checkpoint, checkpoint_policies, lax

X = mnp.ones((4, 4))


def hidden(w: mw.Array, x: mw.Array) -> mw.Array:
    return mnp.sum(mnp.sin(mw.checkpoint_name(mnp.tanh(x @ w), "hidden")))


def in_a_loop(w: mw.Array, x: mw.Array) -> mw.Array:
    return lax.fori_loop(0, 2, lambda _, total: total + hidden(w, x), 0.0)


OFFLOAD = checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=["hidden"], names_which_can_be_offloaded=["other"], offload_src="device",
    offload_dst="pinned_host",
)  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (checkpoint_policies.save_only_these_names("hidden"), []),
        (
            checkpoint_policies.save_only_these_names("hiden"),
            ["nothing is named 'hiden', which a policy names; 'hidden' is"],
        ),
        (checkpoint_policies.save_any_names_but_these("q"), ["nothing is named 'q', which a policy names"]),
        (OFFLOAD, ["nothing is named 'other', which a policy names"]),
        (checkpoint_policies.dots_saveable, []),
        (None, []),
    ],
    ids=str,
)
def test_a_name_that_nothing_has_is_told(policy: object, told: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for function in (hidden, in_a_loop):
        ad_checkpoint.print_saved_residuals(mw.checkpoint(function, policy=policy), X, X)
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if line.startswith("nothing")] == told
