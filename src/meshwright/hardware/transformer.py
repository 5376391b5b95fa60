"""Transformers on paper: parameters, FLOPs, memory, and what a step of inference takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil, log2

from meshwright.hardware.arguments import checked_fields, whole
from meshwright.hardware.chips import Chip, get, item_bytes
from meshwright.hardware.roofline import Machine, compute_seconds, memory_seconds
from meshwright.hardware.topology import Topology

_SIZES = ("layers", "width", "hidden", "heads", "head_dim", "vocab", "kv_heads", "experts", "experts_per_token")


@checked_fields("a transformer", **dict.fromkeys(_SIZES, partial(whole, most=1 << 24)))
@dataclass(frozen=True)
class TransformerShape:
    """The sizes of a decoder-only transformer.

    >>> llama = TransformerShape(layers=80, width=8192, hidden=28672, heads=64, kv_heads=8, head_dim=128, vocab=128256)
    >>> llama.parameters
    70553706496
    >>> llama.kv_bytes_per_token("int8")
    163840
    """

    layers: int
    width: int
    hidden: int
    heads: int
    head_dim: int
    vocab: int
    kv_heads: int | None = None
    gated: bool = True
    tied: bool = False
    experts: int = 1
    experts_per_token: int = 1

    @property
    def _kv(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def attention_parameters(self) -> int:
        """Projections of queries, keys, values and the result, in all layers."""
        return self.layers * self.width * self.head_dim * 2 * (self.heads + self._kv)

    @property
    def mlp_parameters(self) -> int:
        """The two or three matrices of every expert, in all layers."""
        return self.layers * (3 if self.gated else 2) * self.width * self.hidden * self.experts

    @property
    def router_parameters(self) -> int:
        """The matrices that choose experts, in all layers."""
        return self.layers * self.width * self.experts if self.experts > 1 else 0

    @property
    def parameters(self) -> int:
        """All of them: attention, MLP, routers, two norms per layer and a last one, embeddings (once if tied)."""
        norms = (2 * self.layers + 1) * self.width
        tables = (1 if self.tied else 2) * self.vocab * self.width
        return self.attention_parameters + self.mlp_parameters + self.router_parameters + norms + tables

    @property
    def matmul_parameters(self) -> int:
        """The parameters that a token is multiplied by: of experts, those it is sent to; embeddings once, as the head.

        >>> shape = TransformerShape(2, 64, 256, heads=4, head_dim=16, vocab=100, experts=8, experts_per_token=2)
        >>> shape.matmul_parameters
        236800
        """
        mlp = self.mlp_parameters * self.experts_per_token // self.experts
        return self.attention_parameters + mlp + self.router_parameters + self.vocab * self.width

    def train_flops(self, tokens: float, sequence: int) -> float:
        """FLOPs of a train step that computes nothing twice: 6·N·T, and attention over all positions.

        >>> TransformerShape(2, 64, 256, heads=4, head_dim=16, vocab=100).train_flops(1, 128)
        1021440
        """
        attention = 4 * sequence * self.heads * self.head_dim * self.layers
        return tokens * (6 * self.matmul_parameters + 3 * attention)

    def kv_bytes_per_token(self, dtype: object = "bf16") -> float:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self._kv * self.head_dim * item_bytes(dtype)

    @property
    def attention_parity_tokens(self) -> float:
        """Sequence length at which attention (not causal) costs as many FLOPs as its projections.

        Per token 4·T·N·H against 4·D·H·(N + K): T = D (N + K) / N.

        >>> TransformerShape(64, 4096, 16384, heads=32, head_dim=128, vocab=32000).attention_parity_tokens
        8192.0
        """
        return self.width * (self.heads + self._kv) / self.heads


# FLOPs and training memory.


def train_flops(parameters: float, tokens: float, remat: str = "none") -> float:
    """2·P·T forward and twice that backward; ``remat="block"`` runs the forward once more.

    >>> train_flops(70e9, 15e12)
    6.3e+24
    """
    return {"none": 6, "block": 8}[remat] * parameters * tokens


def inference_flops(parameters: float, tokens: float) -> float:
    """2·P·T.

    >>> inference_flops(70e9, 1)
    140000000000.0
    """
    return 2 * parameters * tokens


def activation_bytes(tokens: float, layers: int, width: int, saved: float, dtype: object = "bf16") -> float:
    """``saved`` arrays of [tokens, width] kept in every layer.

    >>> activation_bytes(4e6, 64, 8192, 20)
    83886080000000.0
    """
    return tokens * layers * width * saved * item_bytes(dtype)


def state_bytes(
    parameters: float,
    dtype: object = "bf16",
    moment_dtype: object = "f32",
    moments: int = 2,
    master_dtype: object | None = None,
) -> float:
    """Parameters and the optimizer's moments; Adam in float32 beside bfloat16 parameters takes 10 bytes each.

    With the optimizer's own copy of the parameters in float32, as `train_step` and searches have it, it is 14.

    >>> state_bytes(1), state_bytes(1, master_dtype="f32")
    (10, 14)
    """
    master = item_bytes(master_dtype) if master_dtype is not None else 0
    return parameters * (item_bytes(dtype) + moments * item_bytes(moment_dtype) + master)


def max_parameters(machine: Machine, dtype: object = "bf16") -> float:
    """The largest model whose parameters and moments fit where every chip has all of them (data parallelism).

    >>> max_parameters("tpu v5p")
    9600000000.0
    """
    chip = machine.chip if isinstance(machine, Topology) else get(machine)
    return chip.hbm_bytes / state_bytes(1, dtype)


def train_days(flops: float, machine: Machine, utilization: float = 1.0, dtype: object = "bf16") -> float:
    """Days of compute.

    >>> round(train_days(6.3e24, Topology("tpu v5p", (16, 20, 28)), 0.4), 1)
    44.3
    """
    return compute_seconds(flops, machine, dtype, utilization) / 86400


# Inference.


def smallest_slice(bytes: float, chip: str | Chip) -> int:
    """The smallest power of two of chips whose memory holds ``bytes`` bytes.

    >>> smallest_slice(140e9, "tpu v5e")
    16
    """
    return int(2 ** max(0, ceil(log2(bytes / get(chip).hbm_bytes))))


def sequences_that_fit(machine: Machine, parameter_bytes: float, kv_bytes_per_token: float, context: int) -> int:
    """KV caches of ``context`` tokens that fit beside the parameters.

    >>> sequences_that_fit(Topology("tpu v5e", (4, 2)), 70e9, 162e3, 8192)
    43
    """
    memory = machine.hbm_bytes if isinstance(machine, Topology) else get(machine).hbm_bytes
    return int(max(0.0, memory - parameter_bytes) // (kv_bytes_per_token * context))


def inference_bytes(parameter_bytes: float, kv_bytes_per_token: float, context: int, batch: int) -> float:
    """Parameters and the KV caches of a batch.

    >>> inference_bytes(70e9, 160e3, 8192, 32)
    111943040000.0
    """
    return parameter_bytes + kv_bytes_per_token * context * batch


def decode_seconds(
    machine: Machine,
    parameter_bytes: float,
    kv_bytes: float,
    batch: int = 1,
    *,
    parameters: float | None = None,
    dtype: object = "bf16",
) -> float:
    """One decode step, spread over the machine: every KV cache read once, and parameters read or multiplied by.

        T = B·KV / W + max(2·B·P / C, P_bytes / W)

    ``kv_bytes`` is one sequence's; the compute term counts if ``parameters`` is given.

    >>> round(decode_seconds(Topology("tpu v5e", (4, 4)), 30e9, 100e3 * 8192, 4) * 1e3, 2)
    2.57
    """
    multiply = compute_seconds(inference_flops(parameters, batch), machine, dtype) if parameters else 0.0
    return memory_seconds(batch * kv_bytes, machine) + max(multiply, memory_seconds(parameter_bytes, machine))


def decode_tokens_per_s(
    machine: Machine, parameter_bytes: float, kv_bytes: float, batch: int = 1, **more: object
) -> float:
    """Tokens per second of all sequences; options are those of `decode_seconds`.

    >>> round(decode_tokens_per_s(Topology("tpu v5e", (4, 2)), 26e9, 1.34e9, 64))
    3711
    """
    return batch / decode_seconds(machine, parameter_bytes, kv_bytes, batch, **more)  # type: ignore[arg-type]


def prefill_seconds(parameters: float, tokens: float, machine: Machine, utilization: float = 1.0) -> float:
    """Compute time of reading a prompt.

    >>> round(prefill_seconds(70e9, 8192, Topology("tpu v5e", (4, 4)), 0.4), 2)
    0.91
    """
    return compute_seconds(inference_flops(parameters, tokens), machine, "bf16", utilization)


def evicted_tokens_per_step(batch: int, prompt: int, generated: int) -> float:
    """KV-cache tokens freed per decode step when sequences finish evenly: each frees prompt + generated tokens.

    >>> evicted_tokens_per_step(32, 8192, 4096)
    96.0
    """
    return batch * (prompt + generated) / generated
