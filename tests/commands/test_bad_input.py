"""Bad input to commands: one message on standard error, exit code 2, never a traceback."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from meshwright.cli import COMMANDS, main
from meshwright.engine.measuring.run import raw_text
from meshwright.errors import WITH_JAX

Printed = pytest.CaptureFixture[str]

MODEL = """\
import meshwright as mw
import meshwright.numpy as mnp

print("imported")

def f(x, w):
    return x @ w

def raises(x):
    return inner(x)

def inner(x):
    raise ValueError("no such luck")

def nothing():
    return None

def example():
    return mw.jit(f), (mnp.ones((4, 4)),)

def leaves():
    raise SystemExit(3)

def interrupted():
    raise KeyboardInterrupt
"""
FUNCTIONS = "f, raises, inner, nothing, example, leaves, interrupted"
TWO = "f32[4,4] f32[4,4]"
TINY = "layers=2,width=64,hidden=128,heads=2,head_dim=32,vocab=64"
PRODUCT = ["matmul", "A[I_x,J] @ B[J,K] -> C[I,K]", "--mesh", "x=2"]
CHIPS = "tpu v2, tpu v3, tpu v4, tpu v5e, tpu v5p, tpu v6e, tpu 7x, a100, h100, h200, b200, gb200"
FORMS = "FILE.py:NAME, a file with the text of a program, or -"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, and files that are not what they should be."""
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("broken.py").write_text("x = 1\nx / 0\n")
    Path("syntax.py").write_text("def f(:\n")
    Path("binary").write_bytes(b"\x00\xff\xfe")
    Path("empty").touch()
    Path("deep.json").write_text("[" * 100_000)
    Path("chip.json").write_text(chip("fast"))
    Path("dir").mkdir()
    return tmp_path


def chip(bandwidth: object) -> str:
    """The file of a chip of which little is known."""
    number = {"value": bandwidth, "source": ["measured"]}
    rate = {"value": 1e9, "source": ["measured"]}
    return json.dumps({"name": "mine", "kind": "cpu", "numbers": {"hbm_bytes_per_s": number, "f32_flops_per_s": rate}})


CASES = {
    "a command that is not there": (
        ["simulat", "model.py"],
        f"There is no command 'simulat'.\n  why:  there are {', '.join(COMMANDS)}\n  fix:  meshwright simulate\n",
    ),
    "too few arguments": (
        ["simulate", "model.py:f", "--args", "f32[4,4]"],
        "f(x, w) cannot be called with 1 argument.\n"
        "  why:  missing a required argument: 'w'\n"
        "  fix:  --args 'f32[4,4] f32[8,4]'\n",
    ),
    "too many arguments": (
        ["cost", "model.py:f", "--args", "f32[4,4], f32[4, 4] i32[]"],
        "f(x, w) cannot be called with 3 arguments.\n"
        "  why:  too many positional arguments\n"
        "  fix:  --args 'f32[4,4] f32[4,4]'\n",
    ),
    "no arguments": (
        ["explain", "model.py:f"],
        "f(x, w) cannot be called with no arguments.\n"
        "  why:  missing a required argument: 'x'\n"
        "  fix:  model.py:example\n",
    ),
    "no types": (
        ["simulate", "model.py:f"],
        "f(x, w) cannot be called with no arguments.\n"
        "  why:  missing a required argument: 'x'\n"
        "  fix:  model.py:example, or --args 'f32[8,4] f32[8,4]' with the types of x, w\n",
    ),
    "a function that raises": (
        ["cost", "model.py:raises", "--args", "f32[4]"],
        "model.py:raises raised ValueError.\n"
        '  at:   model.py:13   raise ValueError("no such luck")\n'
        "  why:  no such luck\n",
    ),
    "a function that leaves": (
        ["simulate", "model.py:leaves"],
        "model.py:leaves raised SystemExit.\n  at:   model.py:22   raise SystemExit(3)\n  why:  3\n",
    ),
    "arguments that do not fit": (
        ["explain", "model.py:example"],
        "The function that model.py:example gives raised TypeError.\n"
        "  why:  f() missing 1 required positional argument: 'w'\n",
    ),
    "a file that raises": (
        ["explain", "broken.py:f"],
        "broken.py raised ZeroDivisionError.\n  at:   broken.py:2   x / 0\n  why:  division by zero\n",
    ),
    "a file that is not Python": (
        ["simulate", "syntax.py:f"],
        "syntax.py raised SyntaxError.\n  at:   syntax.py:1   def f(:\n  why:  invalid syntax (syntax.py, line 1)\n",
    ),
    "a shape error in the user's function": (
        ["simulate", "model.py:f", "--args", "f32[4,3] f32[4,3]"],
        "matmul cannot take f32[4,3] and f32[4,3].\n"
        "  at:   model.py:7   return x @ w\n"
        "  why:  dim 1 of the left has size 3, dim 0 of the right has size 4, and they are summed over together\n"
        "  fix:  transpose the left operand: x.T if it is x, x if it is x.T\n",
    ),
    "types that are none": (
        ["simulate", "model.py:f", "--args", "f32[4,4] f32[4"],
        "This is not a list of types: line 1, column 15.\n"
        "  at:   f32[4,4] f32[4\n"
        "                      ^\n"
        "  why:  expected ',', found the end of the text\n"
        "  fix:  f32[8,4] bf16[4]\n",
    ),
    "a Python file without a name": (
        ["simulate", "model.py"],
        "model.py is a Python file, and the name of a function in it is missing.\n"
        f"  why:  it has {FUNCTIONS}\n"
        "  fix:  model.py:example\n",
    ),
    "a name that is not there": (
        ["explain", "model.py:g"],
        f"model.py has no 'g'.\n  why:  it has {FUNCTIONS}\n  fix:  model.py:example\n",
    ),
    "a name that is nearly there": (
        ["simulate", "model.py:exampel"],
        f"model.py has no 'exampel'.\n  why:  it has {FUNCTIONS}\n  fix:  model.py:example\n",
    ),
    "a file that is nearly there": (
        ["explain", "modle.py:example"],
        "modle.py cannot be read.\n  why:  No such file or directory\n  fix:  model.py:example\n",
    ),
    "a file that is not there": (
        ["explain", "gone/one.py:example"],
        "gone/one.py cannot be read.\n  why:  No such file or directory\n  fix:  FILE.py:NAME\n",
    ),
    "no function at all": (
        ["explain", "dir"],
        "'dir' names no function of a Python file.\n  why:  it is not FILE.py:NAME\n  fix:  FILE.py:NAME\n",
    ),
    "not a program": (
        ["simulate", "model.py:nothing"],
        "model.py:nothing gives None, not a program.\n"
        "  why:  a function without arguments returns a program or a function with its arguments, and others are "
        "traced on the types of theirs\n"
        "  fix:  a function with arguments: meshwright simulate model.py:f --args 'f32[8,4]'\n",
    ),
    "no program": (
        ["cost"],
        "One program is wanted.\n"
        "  why:  neither PROGRAM nor --transformer is given\n"
        "  fix:  meshwright cost model.py:train_step --args 'f32[8,4]'\n",
    ),
    "a folder": (["simulate", "dir"], f"dir cannot be read.\n  why:  Is a directory\n  fix:  {FORMS}\n"),
    "no file": (["cost", "gone"], f"gone cannot be read.\n  why:  No such file or directory\n  fix:  {FORMS}\n"),
    "no text": (["cost", "binary"], f"binary cannot be read.\n  why:  it is not text in UTF-8\n  fix:  {FORMS}\n"),
    "nothing on standard input": (
        ["simulate", "-"],
        "This is not a program: line 1, column 1.\n"
        "  at:   \n"
        "        ^\n"
        "  why:  expected 'program', found the end of the text\n"
        "  fix:  write equations as `c: f32[8,4] = add a b`, inside `program(a: f32[8,4], …) { … return c }`\n",
    ),
    "a negative batch": (
        ["simulate", "--transformer", TINY, "--batch", "-1"],
        "--batch is -1.\n  why:  it is a number from 1\n  fix:  --batch 8\n",
    ),
    "a batch that is not split": (
        ["cost", "--transformer", TINY, "--strategy", "data=3"],
        "batch=8 is not split into 3 equal parts.\n"
        "  why:  data times microbatches is 3, and every device does the same\n"
        "  fix:  --batch 9\n",
    ),
    "no parts": (
        ["cost", "--transformer", TINY, "--strategy", "data=0"],
        "data of --strategy is 0.\n  why:  it is a number from 1\n  fix:  data=1\n",
    ),
    "groups of heads": (
        ["cost", "--transformer", f"{TINY},kv_heads=3"],
        "heads=2 is not split into 3 equal parts.\n"
        "  why:  kv_heads is 3, and every device does the same\n"
        "  fix:  heads=3 in --transformer\n",
    ),
    "an option of something else": (
        ["simulate", "model.py:f", "--args", TWO, "--batch", "4"],
        "--batch does not go with PROGRAM.\n  why:  it is of a --transformer\n  fix:  leave out --batch\n",
    ),
    "negative steps": (
        ["simulate", "model.py:f", "--args", TWO, "--while-steps", "-3"],
        "--while-steps is -3.\n  why:  it is how often loops run\n  fix:  --while-steps 100\n",
    ),
    "a bad mesh": (
        ["simulate", "model.py:f", "--args", TWO, "--mesh", "bad"],
        "'bad' is not an axis of a mesh.\n"
        "  at:   bad\n"
        "        ^\n"
        "  why:  an axis has a name and a size\n"
        "  fix:  x=2,y=4\n",
    ),
    "a chip nobody knows": (
        ["cost", "model.py:f", "--hardware", "tpu v9"],
        f"No chip is called 'tpu v9'.\n  why:  there are {CHIPS}\n  fix:  --hardware 'tpu v5p'\n",
    ),
    "a shape that cannot be": (
        ["cost", "model.py:f", "--hardware", "tpu v5e 0"],
        "'0' is not the shape of a machine.\n"
        "  why:  a shape is the number of chips along each axis, all positive\n"
        "  fix:  --hardware 'tpu v5e 4x4'\n",
    ),
    "a chip file that is nested too deeply": (
        [*PRODUCT, "--size", "I=4,J=4,K=4", "--hardware", "deep.json"],
        "deep.json is not the file of a chip.\n"
        "  why:  it is not JSON: maximum recursion depth exceeded while decoding a JSON array from a unicode string\n"
        "  fix:  meshwright calibrate --out chip.json\n",
    ),
    "a chip file with a word for a number": (
        ["reshard", "x", "None", "--mesh", "x=2", "--shape", "4x4", "--hardware", "chip.json"],
        "chip.json is not the file of a chip.\n"
        "  why:  its hbm_bytes_per_s is fast\n"
        "  fix:  meshwright calibrate --out chip.json\n",
    ),
    "sizes that are missing": (
        [*PRODUCT, "--size", "I=4"],
        "No size for J, K.\n  why:  the indices are I, J, K\n  fix:  --size I=4,J=1024,K=1024\n",
    ),
    "a size too many": (
        [*PRODUCT, "--size", "I=4,J=4,K=4,L=4"],
        "The product has no index 'L'.\n  why:  its indices are I, J, K\n  fix:  --size I=4,J=4,K=4\n",
    ),
    "a dtype that is none": (
        ["reshard", "x", "None", "--mesh", "x=2", "--shape", "4x4", "--dtype", "f99"],
        "plan_reshard cannot take the dtype 'f99'.\n  why:  data type 'f99' not understood\n  fix:  --dtype f32\n",
    ),
    "a dtype that NumPy takes for several": (
        ["reshard", "x", "None", "--mesh", "x=2", "--shape", "4x4", "--dtype", "x=2,y"],
        "plan_reshard cannot take the dtype 'x=2,y'.\n  why:  data type 'x=2,y' not understood\n  fix:  --dtype f32\n",
    ),
    "more devices than can be listed": (
        ["reshard", "x", "None", "--mesh", "x=9999999999999", "--shape", "4x4"],
        "The fewest bytes of a reshard on 9999999999999 devices cannot be counted.\n"
        "  why:  a dim is not a multiple of its devices, so that they must be listed, and at most 4194304 are\n"
        "  fix:  a smaller mesh, or a shape whose dims are multiples of the devices they are split over\n",
    ),
    "a module on standard input that is none": (
        ["opt", "binary"],
        "binary cannot be read.\n"
        "  why:  it is not text in UTF-8\n"
        "  fix:  name a file with a module, or - for standard input\n",
    ),
    "measurements on standard input that are none": (
        ["calibrate", "--from", "-"],
        "standard input is not JSON.\n"
        "  why:  Expecting value: line 1 column 1 (char 0)\n"
        "  fix:  meshwright calibrate --keep raw.json\n",
    ),
    "a page in a folder that is not there": (
        ["visualize", "x", "--mesh", "x=2", "--shape", "4", "--html", "gone/page.html"],
        "gone/page.html cannot be written.\n"
        "  why:  No such file or directory\n"
        "  fix:  name a file in a folder that exists\n",
    ),
    "a trace where a folder is": (
        ["simulate", "model.py:f", "--args", TWO, "--perfetto", "dir"],
        "dir cannot be written.\n  why:  Is a directory\n  fix:  name a file in a folder that exists\n",
    ),
}


@pytest.mark.parametrize(("call", "message"), CASES.values(), ids=CASES)
def test_bad_input_is_one_message(
    call: list[str], message: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(call) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.removeprefix("imported\n") == message


@pytest.mark.parametrize(("name", "fix"), [("jax", WITH_JAX), ("jaxx", "")])
def test_a_file_that_needs_jax_says_how_to_get_it(
    name: str, fix: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("needs.py").write_text(f"import {name}\n")
    monkeypatch.setitem(sys.modules, "jax", None)
    assert main(["explain", "needs.py:f"]) == 2
    error = capsys.readouterr().err.splitlines()
    assert error[:2] == ["needs.py raised ModuleNotFoundError.", f"  at:   needs.py:1   import {name}"]
    assert error[3:] == ([f"  fix:  {fix}"] if fix else [])


def test_what_the_users_file_prints_is_not_part_of_the_answer(capsys: Printed) -> None:
    assert main(["simulate", "model.py:f", "--args", TWO, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["devices"] == 1
    assert err == "imported\n"


def test_a_program_on_standard_input(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "program(a: f32[8,8]) { b: f32[8,8] = neg a  return b }"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["cost", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["argument_bytes"] == 4 * 8 * 8


def test_a_machine_of_which_only_measurements_are_known_is_one_chip(capsys: Printed) -> None:
    Path("chip.json").write_text(chip(1e9))
    call = ["simulate", "model.py:f", "--args", TWO, "--hardware"]
    assert main([*call, "chip.json"]) == 0
    # 128 FLOPs at 1 GFLOP/s are 128 ns; 192 bytes at 1 GB/s are 192 ns.
    assert capsys.readouterr().out.startswith("192 ns on mine 1 (1 chip), exact\n  memory-bound")
    assert main([*call, "chip.json 2"]) == 2
    assert capsys.readouterr().err.removeprefix("imported\n") == (
        "How 2 chips of mine are joined is not known.\n"
        "  why:  its data has no torus_dims, and so only one of them is a machine\n"
        "  fix:  a machine of one chip\n"
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"work": [{"kind": "matmul", "dtype": "f32", "m": 8, "k": "8", "n": 8}]}, "the k of the matmul of "),
        ({"work": [{"kind": "stream", "read": -1, "written": 8}]}, "the read of the stream of "),
        ({"work": [1]}, "the work of "),
        ({"seconds": [1e400]}, "the seconds of "),
        ({"together": 0}, "how many parts of a program "),
    ],
)
def test_measurements_that_nothing_can_be_fitted_to(change: dict[str, object], why: str, capsys: Printed) -> None:
    row = {"name": "a", "part": "calibration", "op": "add", "dtype": "f32", "seconds": [1.0], "work": []}
    raw = {"format": 1, "framework": "numpy", "machine": {}, "measurements": [{**row, **change}], "failed": []}
    Path("raw.json").write_text(raw_text(raw))
    assert main(["calibrate", "--from", "raw.json"]) == 2
    assert capsys.readouterr().err.startswith(f"raw.json holds no measurements.\n  why:  {why}measurement 1 ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str, capsys: Printed) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_an_option_that_is_not_there_shows_those_of_the_command(capsys: Printed) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["reshard", "x", "None", "--mesh", "x=2", "--shape", "4", "--shapes", "4"])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("usage: meshwright reshard ")
    assert err.endswith("meshwright reshard: error: unrecognized arguments: --shapes 4; there is --shape\n")


def test_an_interrupted_command_says_nothing(capsys: Printed) -> None:
    assert main(["simulate", "model.py:interrupted"]) == 130
    assert capsys.readouterr() == ("", "imported\n")


def test_a_signal_and_a_closed_pipe_leave_no_traceback() -> None:
    """In processes of their own: the handlers are Python's, and so is what it does when it ends."""
    Path("slow.py").write_text("import sys, time\nprint('ready')\nsys.stdout.flush()\ntime.sleep(60)\n")
    start = [sys.executable, "-m", "meshwright"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also where the tests run in the background
    call = [*start, "simulate", "slow.py:f"]
    slow = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heard)
    assert slow.stderr is not None and slow.stderr.readline() == b"ready\n"
    slow.send_signal(signal.SIGINT)
    assert slow.communicate(timeout=60) == (b"", b"")
    assert slow.returncode == 130
    full = subprocess.Popen([*start, "rules", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert full.stdout is not None and full.stderr is not None
    full.stdout.close()
    assert full.stderr.read() == b""
    assert full.wait(timeout=60) == 0


def test_a_file_is_written_whole_or_not_at_all(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path("page.html")
    page.write_text("before")
    Path("link.html").symlink_to(page)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    call = ["visualize", "x", "--mesh", "x=2", "--shape", "4", "--html"]
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        assert main([*call, "page.html"]) == 2
    assert page.read_text() == "before"
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]
    assert main([*call, "link.html"]) == 0  # what the link is to, not the link
    assert Path("link.html").is_symlink() and page.read_text() != "before"
    assert main([*call, "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()
    capsys.readouterr()
