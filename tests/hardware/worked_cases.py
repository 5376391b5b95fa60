"""The worked cases of `cost_cases.json`, each put as a question to the public API."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import meshwright as mw
from meshwright import hardware as hw
from meshwright.hardware import Topology, TransformerShape

Inputs = dict[str, Any]
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads((Path(__file__).parent / "cost_cases.json").read_text(encoding="utf-8"))
}
ANSWERS: dict[str, Callable[[Inputs], float]] = {}


def answers(*names: str) -> Callable[[Callable[[Inputs], float]], Callable[[Inputs], float]]:
    def register(function: Callable[[Inputs], float]) -> Callable[[Inputs], float]:
        ANSWERS.update(dict.fromkeys(names, function))
        return function

    return register


def answer(name: str) -> float:
    return ANSWERS[name](CASES[name]["inputs"])


def within(value: float, case: dict[str, Any]) -> bool:
    """Whether a value is in the case's tolerance; where that is 0, to the last bits of a float."""
    expected, tolerance = case["expected"]["value"], case["tolerance"]
    if "rel" in tolerance:
        return abs(value - expected) <= tolerance["rel"] * abs(expected)
    if "factor" in tolerance:
        return expected / tolerance["factor"] <= value <= expected * tolerance["factor"]
    return abs(value - expected) <= tolerance["abs"] or math.isclose(value, expected, rel_tol=1e-12)


# 1: roofline.
answers("R01")(lambda i: hw.compute_seconds(i["flops"], "h100"))
answers("R03")(lambda i: hw.get("tpu v5e", hbm_bytes_per_s=i["hbm_bw"]).intensity("bf16"))
answers("R06")(lambda i: hw.collective_matmul_threshold(i["chips"], "tpu v5e", both_ways=False))
answers("R07")(lambda i: hw.critical_batch("tpu v5e", "int8"))

# 2: TPUs.
answers("T01")(
    lambda i: hw.memory_seconds(i["params"] * i["bytes_per_param"], Topology(hw.get("tpu v4", prefer="jax"), (4, 4, 2)))
)
answers("T02")(lambda i: Topology("tpu v5e", i["pod"]).hosts)
answers("T04")(lambda i: Topology("tpu v5e", (16, 16)).flops_per_s("bf16"))
answers("T07")(lambda i: hw.critical_batch(hw.get("tpu v6e", pcie_bytes_per_s=i["pcie_bw"]), memory="pcie"))
answers("T08")(lambda i: hw.matmul_critical_batch(i["D"], i["F"], "tpu v5e", "int8"))
answers("T12")(
    lambda i: hw.point_to_point(1, Topology("tpu v5e", i["topology"]), tuple(i["src"]), tuple(i["dst"])).latency_seconds
)
answers("T13")(lambda i: hw.point_to_point(i["bytes"], Topology("tpu v5e", (4, 4)), (0, 0), (3, 3)).bandwidth_seconds)
answers("T15")(lambda i: hw.memory_seconds(i["bytes"], Topology("tpu v5e", (4, 4)), "pcie"))
answers("T19a", "T19b")(lambda i: sum(Topology("tpu v5e", i["topology"]).wrap))
answers("T19d")(lambda i: sum(Topology("tpu v5p", i["topology"]).wrap))
answers("T21")(lambda i: Topology("tpu v3", i["topology"]).bisection_bytes_per_s)
answers("T23")(lambda i: Topology("tpu v4", (16, 16, 16)).egress_bytes_per_s)

# 3: sharding.
answers("S01")(lambda i: hw.shard_bytes(i["shape"], i["spec"], i["mesh"], "int8"))
answers("S04")(lambda i: hw.copies(i["spec"], i["mesh"]))
SLICE = {"x": 8, "y": 4}
answers("S05")(
    lambda i: hw.collective_seconds(
        "all_gather", i["bytes"], Topology("tpu v5e", (8, 4), mesh=SLICE, wrap=True), "y", "asymptotic"
    )
)
answers("S06")(lambda i: hw.collective_seconds("all_gather", i["bytes"], Topology("tpu v5e", (8, 4), mesh=SLICE), "y"))
answers("S07", "S09")(
    lambda i: hw.collective_seconds(
        "all_gather", i["bytes"], Topology("tpu v5e", (8, 4), mesh=SLICE), "y", "calibrated"
    )
)
answers("S08")(lambda i: hw.collective_seconds("all_gather", i["bytes"], Topology("tpu v5e", (8, 4), mesh=SLICE), "y"))
answers("S10")(lambda i: hw.latency_bound_hop_bytes("tpu v5e"))


@answers("S11", "S12", "S13", "S14", "S15")
def gather_or_reduce(i: Inputs) -> float:
    cube = Topology("tpu v4", (4, 4, 4), mesh=i["mesh"])
    spec = i["spec"]
    kind, axes, options = "all_gather", i.get("gather"), {}
    if "reduce" in i:
        kind, axes = "all_reduce", i["reduce"]
    if "target" in i:
        axes = [axis for before, after in zip(spec, i["target"]) for axis in before if axis not in after]
        used = {axis for dim in (*spec, *i["target"]) for axis in dim}
        options = {"model": "idle axes", "idle": [axis for axis in i["mesh"] if axis not in used]}
    after = [[axis for axis in dim if axis not in axes] for dim in spec] if kind == "all_gather" else spec
    held = hw.shard_bytes(i["shape"], after, i["mesh"], "bf16")
    return hw.collective_seconds(kind, held, cube, axes, "asymptotic", **options)


answers("S16")(lambda i: hw.collective_seconds("all_gather", i["bytes"], Topology("tpu v4", (4, 4, 4)), 0))


def product(batch: int, width: int, hidden: int) -> tuple[Any, Any, Any]:
    """A[B,D] W[D_x,F]: reduce the product of slices, or gather the weights."""
    plan = mw.plan_matmul(
        "A[B,D] @ W[D_x,F] -> C[B,F]",
        {"x": 4},
        {"B": batch, "D": width, "F": hidden},
        topology=Topology("tpu v5p", 4, mesh={"x": 4}, wrap=True),
        mode="asymptotic",
        overlap=True,
    )
    return plan, plan.find("AllReduce_x(C)"), plan.find("AllGather_x(W)")


@answers("S18")
def width_that_pays_to_reduce(i: Inputs) -> float:
    plan, reduce, gather = product(2**24, 4096, 8192)
    return plan.crossover("D", reduce, gather)


@answers("S21")
def batch_that_pays_to_reduce(i: Inputs) -> float:
    plan, reduce, gather = product(1024, i["D"], 8192)
    return plan.crossover("B", reduce, gather, "bandwidth_seconds")


@answers("S22")
def gather_to_scatter(i: Inputs) -> float:
    plan = mw.plan_matmul("A[N,M_x] @ B[M,K] -> C[N,K_x]", {"x": 4}, {k: i[k] for k in "NMK"})
    gather, scatter = plan.find("AllGather_x(A)"), plan.find("ReduceScatter_x(C)")
    return gather.bytes_received_per_device / scatter.bytes_received_per_device


answers("S23")(
    lambda i: (
        hw.collective_cost(
            "all_gather", i["N"] ** 2, Topology("tpu v5e", i["devices"]), model="one-way ring"
        ).bytes_per_link
    )
)
answers("S26", "S29")(
    lambda i: hw.collective_seconds("all_to_all", i["bytes"], Topology("tpu v5e", i["topology"]), mode="asymptotic")
)
answers("S32")(
    lambda i: (
        hw.shard_bytes((i["D"], i["F"]), [None, ("x", "y")], {"x": 2, "y": 2})
        + hw.shard_bytes((i["F"], i["D"]), [("x", "y"), None], {"x": 2, "y": 2})
    )
)


@answers("S39")
def efficiency(i: Inputs) -> float:
    ring = Topology("tpu v5e", (8, i["axis"]))
    ideal, measured = (hw.collective_seconds("all_gather", i["bytes"], ring, 1, m) for m in ("exact", "calibrated"))
    return ideal / measured


answers("S41")(lambda i: hw.collective_seconds("all_gather", i["bytes"], Topology("tpu v5p", i["topology"])))

# The seeds.
answers("D01")(lambda i: len(list(hw.enumerate_layouts(dict(zip("xyz"[: i["mesh_axes"]], (2, 2, 2))), i["rank"]))))
answers("D05")(
    lambda i: hw.collective_seconds(
        "all_gather",
        hw.shard_bytes(i["shape"], [["x"], []], i["mesh"]),
        Topology(hw.get("tpu v4", prefer="seed 001"), (2, 2, 1), mesh=i["mesh"]),
        i["gather"],
    )
)
answers("D07")(
    lambda i: hw.latency_bound_bytes(
        "all_gather",
        Topology(hw.get("tpu v4", prefer="seed 001"), i["N"], wrap=True),
        model="seed 001",
    )
)
answers("E01")(lambda i: hw.collective_matmul_threshold(i["chips"], "tpu v5p"))


# 4: transformers.
def transformer(i: Inputs) -> TransformerShape:
    heads = i.get("N", 32)
    return TransformerShape(
        layers=i["L"],
        width=i["D"],
        hidden=i["F"],
        heads=heads,
        kv_heads=i.get("K"),
        head_dim=i.get("H", i["D"] // heads),
        vocab=i["V"],
        tied=i.get("tied", False),
    )


answers("X01", "P22", "A01", "A12", "I10")(lambda i: transformer(i).parameters)


@answers("X03", "L01", "I03")
def kv_cache(i: Inputs) -> float:
    heads, size = i.get("K", 32), i.get("H", i.get("kv_dim", 0) // 32)
    shape = TransformerShape(layers=i["L"], width=1, hidden=1, heads=heads, head_dim=size, vocab=1)
    return i.get("T", 1) * shape.kv_bytes_per_token({1: "int8", 2: "bf16"}[i["itemsize"]])


answers("X05")(
    lambda i: (
        mw.plan_matmul(
            "A[B_X,D] @ W[D,F_Y] -> C[B_X,F_Y]",
            i["mesh"],
            {"B": i["B"], "D": i["D"], "F": i["F"]},
            topology=Topology("tpu v5p", (4, 8, 4)),
        )
        .find()
        .total_flops
    )
)
answers("X06")(lambda i: hw.einsum_flops("IJKL,IJMNO->KLMNO", i["sizes"]))
answers("X09")(lambda i: transformer({**i, "F": 1, "V": 1, "L": 1}).attention_parity_tokens)
answers("X11")(
    lambda i: hw.utilization(
        hw.train_flops(i["active_params"], i["tokens"]),
        i["gpu_hours"] * 3600,
        hw.get("h100", fp8_flops_per_s=i["peak"]),
        "fp8",
    )
)
answers("X12")(lambda i: hw.activation_bytes(i["tokens"], i["L"], i["D"], i["saved"]))
answers("X15")(lambda i: hw.train_flops(1, 1, remat="block") / hw.train_flops(1, 1))

# 5 and 6: training.
V5P_POD = (16, 20, 28)
answers("P01")(lambda i: hw.max_parameters("tpu v5p"))
answers("P02")(lambda i: hw.link_intensity("tpu v5p"))
answers("P03")(lambda i: hw.data_parallel_batch(Topology("tpu v5p", V5P_POD)))
answers("P05")(lambda i: hw.data_parallel_chips(i["batch"], "tpu v5p", i["axes"]))
answers("P07")(lambda i: hw.tensor_parallel_limit(i["F"], "tpu v5p", i["axes"]))
answers("P11")(lambda i: hw.best_data_parallelism(i["B"], i["F"], i["N"], i["MX"], i["MY"]))
answers("P12", "P14", "P15", "P17", "A10")(
    lambda i: i.get("N", 1) * hw.mixed_tokens(i["F"], "tpu v5p", i["MXMY"], 1, overlap=i["overlap_axes"])
)
answers("P19")(lambda i: hw.slice_tokens("tpu v5p"))
answers("P25")(lambda i: hw.data_parallel_batch(Topology("tpu v5p", (16, 16, 16))))
answers("P28")(
    lambda i: (
        2
        * hw.collective_seconds(
            "all_gather", hw.shard_bytes((i["D"], i["F"]), [], {}), Topology("tpu v5p", (16, 16, 16)), mode="asymptotic"
        )
    )
)
answers("P31")(
    lambda i: hw.mixed_forward_seconds(
        i["B"], i["D"], i["F"], "tpu v5p", data=i["X"], tensor=i["Y"], data_axes=i["MX"], tensor_axes=i["MY"]
    )
)
answers("A03")(lambda i: hw.compute_seconds(hw.train_flops(i["params"], 1), "tpu v5p"))
answers("A05")(lambda i: hw.train_days(hw.train_flops(70e9, 15e12), Topology("tpu v5p", V5P_POD), i["mfu"]))
answers("A06")(
    lambda i: hw.state_bytes(i["params"]) + hw.activation_bytes(i["tokens"], i["L"], i["D"], i["ckpt_per_layer"])
)
answers("A09")(lambda i: hw.tokens_per_chip(i["batch"], Topology("tpu v5p", V5P_POD)))

# 7 and 8: inference.
answers("I01")(
    lambda i: hw.decode_seconds(Topology("tpu v5e", (4, 4)), i["param_bytes"], i["kv_per_token"] * i["ctx"], i["batch"])
)
BOOK_V5E = {"hbm_bytes_per_s": 8.2e11}
answers("I04_1", "I04_240")(
    lambda i: hw.decode_seconds(
        Topology(hw.get("tpu v5e", **BOOK_V5E), (4, 2)), i["param_bytes"], i["kv_bytes"], i["batch"], parameters=13e9
    )
)
answers("I05_64")(
    lambda i: hw.decode_tokens_per_s(
        Topology(hw.get("tpu v5e", **BOOK_V5E), (4, 2)), i["param_bytes"], i["kv_bytes"], i["batch"]
    )
)
answers("I07")(
    lambda i: hw.decode_tensor_parallel_limit(i["F"], i["B"], hw.get("tpu v5e", hbm_bytes_per_s=i["beta"] * 9e10))
)
answers("I09")(lambda i: hw.attention_critical_tokens("tpu v5e", intensity=i["critical_intensity"]))
answers("I13")(lambda i: hw.memory_seconds(i["params"], Topology("tpu v5e", (4, 4))))
answers("I15")(
    lambda i: hw.critical_batch(
        hw.get("tpu v5e", hbm_bytes_per_s=197e12 / i["critical_intensity"]), experts=i["E"], active=i["k"]
    )
)
answers("I17")(lambda i: hw.weight_stationary_chips(i["F_over_D"], axes=3))
answers("I18")(lambda i: hw.weight_stationary_seconds(i["B"], i["D"], i["N"], "tpu v5p"))
answers("I20")(
    lambda i: hw.latency_bound_bytes("all_gather", Topology("tpu v5e", i["shards"], wrap=True), mode="asymptotic")
)
answers("L03")(lambda i: hw.inference_bytes(i["params"], i["kv_per_token"], i["ctx"], i["batch"]))
answers("L06")(lambda i: hw.tensor_parallel_limit(i["F"], "tpu v5e", i["axes"]))
answers("L07_bf16")(lambda i: hw.smallest_slice(i["params"] * i["bytes_per_param"], "tpu v5e"))
answers("L08_int8", "L08_int4")(
    lambda i: hw.sequences_that_fit(
        Topology("tpu v5e", int(i["hbm"] / 16e9)), i["params_bytes"], i["kv_per_token"], i["ctx"]
    )
)
answers("L09")(lambda i: hw.decode_seconds("tpu v5e", hw.get("tpu v5e").hbm_bytes, 0))
answers("L12")(
    lambda i: hw.collective_seconds(
        "all_gather", hw.shard_bytes((i["B"], i["D"]), [], {}), Topology("tpu v5e", (4, 8), wrap=True), 1, "asymptotic"
    )
)
answers("L15")(lambda i: hw.prefill_seconds(i["params"], i["tokens"], Topology("tpu v5e", (4, 4)), i["mfu"]))
answers("L16")(lambda i: hw.evicted_tokens_per_step(i["batch"], i["P"], i["G"]))

# 9 and 10: profiles.
answers("F01")(lambda i: hw.tile_expansion(i["shape"], i["tile"]))
answers("F02")(
    lambda i: hw.compute_seconds(hw.einsum_flops("BD,DF->BF", {**i, "B": i["tokens"]}), Topology("tpu v2", (2, 2)))
)
answers("F03")(lambda i: hw.collective_seconds("reduce_scatter", i["bytes"], Topology("tpu v2", (4, 2)), 1))
answers("F04")(
    lambda i: hw.collective_seconds("reduce_scatter", i["bytes"], Topology("tpu v2", (4, 2)), 1, "calibrated")
)


@answers("J01", "J02")
def overlap(i: Inputs) -> float:
    compute, communication = i["compute_only_us"], i["naive_us"] - i["compute_only_us"]
    if i is CASES["J02"]["inputs"]:
        return hw.hidden_fraction(compute, communication, steps=4)
    return i["naive_us"] / hw.overlapped_seconds(compute, communication, steps=4)


# 12: GPUs.
H100 = hw.get("h100", prefer="scaling book")
NODE, UNIT = Topology(H100, 8), Topology(H100, 256, mesh={"x": 32, "y": 8})
answers("G01")(lambda i: H100.sms * H100.sm_lanes_fp32)
answers("G03")(lambda i: H100.intensity("f16"))
answers("G05")(lambda i: hw.matmul_seconds(i["B"], i["D"], i["F"], "b200", "f16"))
answers("G07")(lambda i: hw.elementwise_seconds(i["n"], H100, "f32"))
answers("G08")(lambda i: hw.elementwise_seconds(i["n"], H100, "f32", mode="calibrated"))
answers("G10")(lambda i: NODE.egress_bytes_per_s)
answers("G11")(lambda i: hw.collective_seconds("all_gather", i["bytes"], NODE))
answers("G12")(lambda i: hw.collective_seconds("all_gather", i["bytes"], NODE, mode="calibrated"))
answers("G14")(lambda i: hw.collective_seconds("all_to_all", i["bytes"], NODE))
answers("G16")(lambda i: hw.collective_seconds("all_reduce", i["bytes"], NODE))


@answers("G18")
def sharp_gain(i: Inputs) -> float:
    ring, sharp = (hw.collective_seconds("all_reduce", 2**30, NODE, model=m) for m in ("links", "sharp"))
    return ring / sharp


@answers("G19")
def measured_bus(i: Inputs) -> float:
    seconds = hw.collective_seconds("all_reduce", 2**36, NODE, mode="calibrated")
    return hw.bus_bytes_per_s("all_reduce", 2**36, i["N"], seconds)


answers("G20")(lambda i: hw.collective_bytes_per_s("all_gather", UNIT))
answers("G22")(
    lambda i: hw.collective_seconds("all_gather", hw.shard_bytes((i["D"], i["F"]), [None, "y"], UNIT.mesh), UNIT, "x")
)
answers("G24")(lambda i: hw.data_parallel_tokens(NODE))
answers("G28")(lambda i: hw.data_parallel_batch(Topology(H100.replace(nvlink_bytes_per_s=i["W"]), i["gpus"])))
answers("G29")(lambda i: hw.tensor_parallel_limit(i["F"], UNIT))
answers("G31")(lambda i: hw.data_parallel_tokens(Topology("b200", 64)))
answers("G33")(lambda i: hw.train_days(hw.train_flops(70e9, 15e12), Topology(H100, i["gpus"]), i["mfu"]))
answers("G34")(lambda i: hw.tensor_parallel_limit(i["F"], NODE))
answers("G36")(lambda i: Topology("gb200", i["links"]).node_egress_bytes_per_s)
answers("G39")(
    lambda i: hw.collective_seconds(
        "all_gather", i["bytes"] / i["Y"], Topology(H100, 512, mesh={"x": 8, "y": i["Y"]}), "x", "asymptotic"
    )
)

# Resharding: what must be received.
answers("Q01", "Q03", "Q06", "Q07", "Q10")(
    lambda i: hw.missing_bytes(
        i["shape"],
        i["src"],
        i["dst"],
        i["mesh"],
        {1: "int8", 2: "bf16"}[i["itemsize"]],
        total=i["metric"].startswith("total"),
    )
)


# Whole iterations that others measured.
@answers("M_22B_ful", "M_22B_seq", "M_1T_ful", "M_1T_seq")
def iteration(i: Inputs) -> float:
    shape = TransformerShape(
        layers=i["layers"],
        width=i["hidden"],
        hidden=4 * i["hidden"],
        heads=i["heads"],
        head_dim=i["hidden"] // i["heads"],
        vocab=i["vocab"],
        gated=False,
    )
    chip = hw.get("a100", hbm_bytes_per_s=i["hardware"]["hbm_bw"])
    selective = i["recompute"] != "full_recompute"
    return hw.train_step(
        shape,
        Topology(chip, i["tp"] * i["pp"] * i["dp"]),
        batch=i["global_batch"],
        microbatches=i["global_batch"] // (i["dp"] * i["microbatch"]),
        sequence=i["seq"],
        tensor=i["tp"],
        pipeline=i["pp"],
        data=i["dp"],
        schedule="interleaved" if i["interleave"] > 1 else "1f1b",
        chunks=i["interleave"],
        recompute="attention" if selective else "full",
        sequence_parallel=selective,
        dtype="f16",
        mode="calibrated",
        flash=False,
    ).seconds


def table() -> str:
    """The worked cases as a table: what is expected, what the model says, and where the expectation comes from."""
    lines = [
        "| | question | hardware | expected | modelled | off by | allowed | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        value, expected, unit = answer(name), case["expected"]["value"], case["expected"]["unit"]
        off = f"{100 * (value / expected - 1):+.1f} %" if expected else f"{value:g}"
        allowed = {"rel": "{:.3g} %", "factor": "× {:g}", "abs": "{:g}"}
        ((how, much),) = case["tolerance"].items()
        cells = [
            name,
            case["question"],
            case["hardware"],
            f"{expected:.5g} {unit}",
            f"{value:.5g}",
            off.replace("+0.0 %", "0").replace("-0.0 %", "0"),
            allowed[how].format(100 * much if how == "rel" else much),
            case["source"],
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


PAGE = Path(__file__).parents[2] / "docs" / "costs.md"
BEGIN, END = "<!-- worked cases -->\n", "\n<!-- end of worked cases -->"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:before] + table() + text[after:], encoding="utf-8")
