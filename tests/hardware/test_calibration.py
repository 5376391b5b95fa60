"""Fitting a machine's numbers: machines that are known, files that are not measurements, the command."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwright import hardware
from meshwright.cli import main
from meshwright.engine.measuring.cases import SCALES, Case, cases, operands, random_cases
from meshwright.engine.measuring.run import measure, raw_text
from meshwright.engine.measuring.work import work
from meshwright.errors import HardwareError
from meshwright.hardware.calibration import calibrate, compare, search
from meshwright.hardware.kernels import CONVOLUTIONS, MOVING, Kernels
from meshwright.hardware.measurements import check_measurements, read_measurements
from meshwright.hardware.products import Tiled
from tests.hardware.measured_machines import BEGIN, END, PAGE, compared, measurements, table

Printed = pytest.CaptureFixture[str]
ROOT = Path(__file__).parent.parent.parent

MADE_UP = Kernels(
    units=100,
    tiled=True,
    call_seconds=6e-6,
    start_seconds=5e-6,
    launch_seconds=3e-6,
    bytes_per_s=2e12,
    elements_per_s=4e11,
    products={
        "bf16": Tiled(4e14, 20.0, 3.6e14, 1e-6, 2e-7, 8e10, reduce_seconds=3e-6, operands=0.85, unaligned=1.1),
        "f32": Tiled(1.5e14, 8.0, 1.3e14, 2e-6, 3e-7, 6e10, reduce_seconds=4e-6, operands=0.8, unaligned=1.2),
        "bf16 compiled": Tiled(5e14, 0.0, 1e29, 5e-7, 2e-7, 5e10, 8e-9, 1.2e-8, 2e-6, 0.8, 1.1),
        "f32 compiled": Tiled(1e14, 0.0, 1e29, 6e-7, 3e-7, 5e10, 1e-8, 2e-8, 2e-6, 0.8, 1.1),
        "conv": Tiled(3.5e14, 30.0, 3e14, 4e-6, 0.0, 4e10, operands=0.5),
        "conv_filter_grad": Tiled(3e14, 20.0, 2.5e14, 5e-6, 0.0, 4e10, reduce_seconds=8e-6, operands=0.4),
    },
    share={"reduce": 0.9, "column_reduce": 0.75, "normalize": 0.8, "transpose": 0.7, "gather": 0.6, "scatter": 0.5,
           "attention": 0.7},
    column_seconds=5e-9,
    row_bytes=2e5,
    exponentials_per_s=2e12,
    row_elements_per_s=5e11,
    row_bytes_per_s=1e10,
    attention_seconds=4e-6,
    attention_fill_seconds=1e-6,
    library_seconds={"conv": 2e-5, "conv_filter_grad": 3e-5},
)  # fmt: skip


def made_up(machine: Kernels = MADE_UP, noise: float = 0.0) -> dict[str, Any]:
    """Measurements of a machine that follows the model but for noise."""
    chance = random.Random(0)
    rows = []
    for case in cases(SCALES["accelerator"]):
        kernels = work(case, "jax")
        times = [machine.seconds(kernels) * (1 + chance.gauss(0, noise)) for _ in range(3)]
        rows.append({"name": case.name, "part": case.part, "op": case.op, "dtype": case.dtype, "sizes": case.sizes,
                     "seconds": times, "work": kernels})  # fmt: skip
    facts = {"device": "made up", "platform": "gpu", "units": 100, "version": "1"}
    return {"format": 1, "framework": "jax", "machine": facts, "measurements": rows, "failed": []}


def test_a_known_machine_is_found_again() -> None:
    found = calibrate(made_up())
    assert found.errors("held out", "step")[1] < 0.03
    assert found.kernels.bytes_per_s == pytest.approx(2e12, rel=0.02)
    assert found.kernels.flops_per_s == pytest.approx({"bf16": 4e14, "f32": 1.5e14}, rel=0.05)
    assert found.kernels.share == pytest.approx(MADE_UP.share, rel=0.05)


def test_noise_of_the_measurements_stays_of_its_size() -> None:
    found = calibrate(made_up(noise=0.05))
    middle, worst = found.errors("held out", "step")
    assert middle < 0.05 and worst < 0.2


def test_there_are_unseen_ops_and_steps_and_each_has_its_work() -> None:
    every = cases(SCALES["accelerator"])
    assert sum(case.part == "held out" for case in every) >= 20
    assert [case.op for case in every if case.part == "step"] == ["mlp_step", "transformer_step", "conv_step"]
    seen = {case.name for case in every if case.part == "calibration"}
    assert not seen & {case.name for case in every if case.part in ("held out", "step")}
    for framework in ("jax", "torch"):
        for case in every:
            for one in work(case, framework):
                assert one["kind"] in (*MOVING, *CONVOLUTIONS, "matmul", "attention")
                assert one["count"] >= 1
            if case.part != "step":
                assert operands(case)


def test_random_cases_are_new_and_follow_from_their_seed() -> None:
    scale = SCALES["accelerator"]
    drawn = random_cases(scale, 100, 3)
    assert drawn == random_cases(scale, 100, 3) != random_cases(scale, 100, 4)
    assert len({case.name for case in drawn}) == 100
    assert not {case.name for case in drawn} & {case.name for case in cases(scale)}
    for case in drawn:
        assert case.part == "held out"
        assert operands(case)
        assert 1e-6 < Kernels.of("h200").seconds(work(case, "jax")) < 0.05


def test_the_work_of_a_step_has_its_flops() -> None:
    step = next(case for case in cases(SCALES["accelerator"]) if case.op == "transformer_step")
    s = step.sizes
    tokens, width, layers = s["batch"] * s["tokens"], s["width"], s["layers"]
    weights = 12 * width**2 * layers + width * s["vocabulary"]
    scores = 12 * s["batch"] * s["tokens"] ** 2 * width * layers
    products = [one for one in work(step, "jax") if one["kind"] == "matmul"]
    flops = sum(2 * one["batch"] * one["m"] * one["k"] * one["n"] * one["count"] for one in products)
    assert flops == 6 * tokens * weights + scores


def test_a_chip_file_is_read_back(tmp_path: Path) -> None:
    found = calibrate(made_up())
    path = tmp_path / "chip.json"
    path.write_text(found.file)
    chip = hardware.get(path)
    assert hardware.get(str(path)) == chip
    assert (chip.name, chip.kind, chip.fact("hbm_bytes_per_s").source) == ("made up", "gpu", ("measured",))
    assert chip.flops_per_s("bf16") == found.kernels.flops_per_s["bf16"]
    assert Kernels.of(chip) == found.kernels
    assert Kernels.of(chip).matmul(4096, 4096, 4096) == found.kernels.matmul(4096, 4096, 4096)


def test_a_chip_that_is_known_gets_efficiencies() -> None:
    raw = made_up()
    raw["machine"]["device"] = hardware.get("a100").name
    chip = calibrate(raw).chip
    assert (chip.name, chip.hbm_bytes_per_s) == ("a100", hardware.get("a100").hbm_bytes_per_s)
    assert chip.known("hbm_efficiency", 0) == pytest.approx(2e12 / chip.hbm_bytes_per_s, rel=0.02)
    assert chip.known("matmul_efficiency", 0) == pytest.approx(3.6e14 / chip.flops_per_s("bf16"), rel=0.05)
    calm, real = (hardware.elementwise_seconds(2**28, chip, mode=mode) for mode in ("exact", "calibrated"))
    launch = Kernels.of(chip).launch_seconds
    assert launch > 0
    assert real == pytest.approx(calm / chip.known("hbm_efficiency", 0) + launch)
    assert hardware.elementwise_seconds(8, chip, mode="calibrated") == pytest.approx(launch, rel=1e-3)
    assert hardware.reduction((8, 8), 1, chip, mode="calibrated").seconds == pytest.approx(launch, rel=1e-3)


def test_whole_waves_of_tiles() -> None:
    """A tile more than fills the units takes another wave."""
    coarse = Kernels(4, True, 0, 0, 0, 1e18, 1e18, {"bf16": Tiled(1e30, fill_seconds=1.0)})
    assert coarse.matmul(256, 64, 4 * 128) == pytest.approx(1.0)
    assert coarse.matmul(257, 64, 4 * 128) == pytest.approx(2.0)
    assert coarse.matmul(256, 64, 128, batch=4) == pytest.approx(1.0)


def test_search_follows_a_valley() -> None:
    found = search(lambda x: [x[0] * x[1] - 6, 0.01 * (x[0] - 2)], [1.0, 1.0])
    assert found == pytest.approx([2, 3], rel=1e-3)


def test_a_kind_of_kernel_that_is_not_known() -> None:
    with pytest.raises(HardwareError) as caught:
        MADE_UP.seconds([{"kind": "sort", "count": 1}])
    assert caught.value.what == "No kernel is of the kind 'sort'."
    with pytest.raises(HardwareError) as caught:
        MADE_UP.matmul(8, 8, 8, "fp8")
    assert (caught.value.what, caught.value.why) == ("No products of fp8 were measured.", "those of bf16, f32 were")
    with pytest.raises(HardwareError) as caught:
        Kernels.of("tpu v5e")
    assert caught.value.what == "The data of tpu v5e has no kernels."


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw: raw.pop("machine"), "it has no format, framework, machine and measurements"),
        (lambda raw: raw.update(format=2), "its format is 2, and 1 is read"),
        (lambda raw: raw.update(measurements={}), "its machine is not a dict or its measurements are not a list"),
        (lambda raw: raw["measurements"][2].pop("work"), "measurement 3 has no work"),
        (
            lambda raw: raw["measurements"][0].update(seconds=[1.0, -1.0]),
            "the seconds of measurement 1 are not positive numbers",
        ),
        (lambda raw: raw["measurements"][0].update(seconds=[]), "measurement 1 has no seconds"),
        (
            lambda raw: raw["measurements"].__setitem__(0, 7),
            "measurement 1 is not a dict",
        ),
    ],
)
def test_files_that_are_no_measurements(change: Any, why: str) -> None:
    raw = made_up()
    change(raw)
    with pytest.raises(HardwareError) as caught:
        check_measurements(raw, "raw.json")
    assert caught.value.what == "raw.json holds no measurements."
    assert caught.value.why == why


def test_too_few_measurements() -> None:
    raw = made_up()
    raw["measurements"] = raw["measurements"][:3]
    with pytest.raises(HardwareError) as caught:
        calibrate(raw)
    assert caught.value.why == "of 3 cases 0 are elementwise and 3 are products"


def test_the_command_fits_a_file(tmp_path: Path, capsys: Printed) -> None:
    raw, chip = tmp_path / "raw.json", tmp_path / "chip.json"
    raw.write_text(raw_text(made_up()))
    assert main(["calibrate", "--from", str(raw), "--out", str(chip)]) == 0
    assert capsys.readouterr().out == calibrate(read_measurements(raw)).text + "\n"
    assert hardware.get(chip).name == "made up"
    assert main(["calibrate", "--from", str(raw), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["worst_error"] < 0.03
    assert {"name", "part", "measured", "predicted", "error"} <= printed["cases"][0].keys()
    product = ["matmul", "A[I_x,J] @ B[J,K] -> C[I,K]", "--size", "I=8,J=8,K=8", "--hardware", str(chip)]
    assert main([*product, "--mesh", "x=1", "--mode", "calibrated"]) == 0
    capsys.readouterr()
    assert main([*product, "--mesh", "x=2"]) == 2
    assert capsys.readouterr().err == (
        "How 2 chips of made up are joined is not known.\n"
        "  why:  its data has no nvlink_domain, and so only one of them is a machine\n"
        "  fix:  a machine of one chip\n"
    )


def test_the_command_tests_with_other_measurements(tmp_path: Path, capsys: Printed) -> None:
    raw, other = made_up(), made_up()
    held = [row for row in raw["measurements"] if row["part"] == "held out"]
    raw["measurements"] = [row for row in raw["measurements"] if row not in held]
    other["measurements"] = held
    for name, content in (("raw", raw), ("other", other)):
        (tmp_path / f"{name}.json").write_text(raw_text(content))
    files = ["--from", str(tmp_path / "raw.json"), "--test", str(tmp_path / "other.json")]
    assert main(["calibrate", *files, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert sum(case["part"] == "held out" for case in printed["cases"]) == len(held)
    other["framework"] = "torch"
    (tmp_path / "other.json").write_text(raw_text(other))
    assert main(["calibrate", *files]) == 2
    assert capsys.readouterr().err == (
        "The measurements to test with are of another machine.\n"
        "  why:  they are of made up through torch, the others of made up through jax\n"
        "  fix:  meshwright calibrate --engine jax --keep raw.json\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "raw.json cannot be read.\n  why:  No such file or directory\n"),
        ("[]", "raw.json holds no measurements.\n  why:  it has no format, framework, machine and measurements\n"),
        ("?", "raw.json is not JSON.\n  why:  Expecting value: line 1 column 1 (char 0)\n"),
    ],
)
def test_the_command_refuses_other_files(
    text: str | None, message: str, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("raw.json").write_text(text)
    assert main(["calibrate", "--from", "raw.json", "--out", "chip.json"]) == 2
    assert capsys.readouterr().err == f"{message}  fix:  meshwright calibrate --keep raw.json\n"
    assert not Path("chip.json").exists()


def test_a_folder_that_is_not_there_is_told_before_measuring(capsys: Printed) -> None:
    assert main(["calibrate", "--out", "/nowhere/chip.json"]) == 2
    assert capsys.readouterr().err == (
        "/nowhere/chip.json cannot be written.\n"
        "  why:  there is no folder /nowhere\n"
        "  fix:  name a file in a folder that exists\n"
    )


def test_what_could_not_be_measured_is_said() -> None:
    raw = made_up()
    why = {7: "no time left", 8: "unsupported: no kernel"}
    raw["failed"] = [{"op": "conv", "dtype": "bf16", "sizes": {"side": side}, "why": why[side]} for side in why]
    assert calibrate(raw).text.splitlines()[-1] == "not measured: conv bf16 {'side': 7}: no time left"


def test_files_that_are_no_chips(tmp_path: Path) -> None:
    path = tmp_path / "chip.json"
    for text in (
        "[]",
        '{"name": "x", "kind": "boat", "numbers": {}}',
        '{"name": "x", "kind": "gpu", "numbers": {"a": 1}}',
    ):
        path.write_text(text)
        with pytest.raises(HardwareError) as caught:
            hardware.get(path)
        assert caught.value.what == f"{path} is not the file of a chip."
        assert caught.value.why == "it has no name, kind (tpu, gpu, cpu) and numbers, each with a value and a source"
    with pytest.raises(HardwareError) as caught:
        hardware.get("nowhere.json")
    assert caught.value.why == "No such file or directory"


def test_the_command_measures_through_numpy(tmp_path: Path, capsys: Printed) -> None:
    raw, chip = tmp_path / "raw.json", tmp_path / "chip.json"
    assert main(["calibrate", "--engine", "numpy", "--quick", "--keep", str(raw), "--out", str(chip)]) == 0
    assert "measured through numpy" in capsys.readouterr().out
    found = read_measurements(raw)
    assert {row["part"] for row in found["measurements"]} >= {"calibration", "held out"}
    assert all(row["dtype"] == "f32" for row in found["measurements"])
    assert hardware.get(chip).kind == "cpu"
    assert hardware.matmul(64, 64, 64, hardware.get(chip), "f32").seconds > 0


def test_one_failing_op_does_not_lose_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*unused: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr("numpy.matmul", fail)
    saved: list[int] = []
    raw = measure("numpy", quick=True, save=lambda raw: saved.append(len(raw["measurements"])))
    assert {row["why"] for row in raw["failed"] if row["op"] == "matmul"} == {"RuntimeError('no memory')"}
    assert any(row["op"] == "add" for row in raw["measurements"])
    assert saved[-1] == len(raw["measurements"])


def test_the_script_needs_nothing_installed(tmp_path: Path) -> None:
    """Without the package's own dependencies, in a Python that has NumPy alone."""
    out = tmp_path / "raw.json"
    hide = "import sys; sys.modules.update(dict.fromkeys(('ml_dtypes', 'optree', 'greenlet', 'rich', 'jax', 'torch')))"
    script = ROOT / "benchmarks" / "measure.py"
    code = f"{hide}; sys.argv[1:] = {['--out', str(out), '--framework', 'numpy', '--quick']}; import runpy; "
    code += f"runpy.run_path({str(script)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read_measurements(out)["framework"] == "numpy"


@pytest.mark.slow
def test_every_case_runs_through_jax() -> None:
    pytest.importorskip("jax")
    raw = measure("jax", quick=True)
    assert {row["why"] for row in raw["failed"]} <= {"unsupported: fused attention needs a GPU"}
    assert {row["op"] for row in raw["measurements"] if row["part"] == "step"} == {
        "mlp_step", "transformer_step", "conv_step"
    }  # fmt: skip


def test_an_h200_is_predicted_within_the_bar() -> None:
    """At least 20 unseen ops and 3 train steps: median error at most 10 %, the worst at most 30 %."""
    raw = measurements("h200_jax")
    assert raw["failed"] == []
    found = calibrate(raw)
    assert len(found.of("held out")) == 38 and len(found.of("step")) == 3
    for parts in (("held out",), ("step",), ("held out", "step")):
        middle, worst = found.errors(*parts)
        assert middle <= 0.1 and worst <= 0.3


def test_the_h200_that_comes_with_the_package_is_that_fit() -> None:
    chip, found = hardware.get("h200"), calibrate(measurements("h200_jax")).chip
    assert chip.facts.keys() == found.facts.keys()
    assert chip.fact("hbm_efficiency").source == ("measured",)
    for name in ("hbm_efficiency", "matmul_efficiency"):
        assert getattr(chip, name) == pytest.approx(getattr(found, name), rel=0.05)
    for ours, theirs in zip(compared(), compare(measurements("h200_jax"), Kernels.of(found)), strict=True):
        assert ours.predicted == pytest.approx(theirs.predicted, rel=0.05)


def test_the_documentation_lists_every_unseen_case() -> None:
    """`python -m tests.hardware.measured_machines` writes the table."""
    assert BEGIN + table() + END in PAGE.read_text(encoding="utf-8")


def test_through_eager_torch_kernels_of_a_kind_differ_more() -> None:
    middle, worst = calibrate(measurements("h200_torch")).errors("held out", "step")
    assert middle <= 0.1 and worst <= 0.5


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_kept_measurements_list_the_work_that_is_described_now(framework: str) -> None:
    """`python benchmarks/measure.py --describe RAW --out RAW` brings them up to date."""
    for row in measurements(f"h200_{framework}")["measurements"]:
        assert row["work"] == work(Case(row["part"], row["op"], row["dtype"], row["sizes"]), framework)
