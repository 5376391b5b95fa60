"""What the library's errors say to write, as one types it on a command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager

from meshwright.errors import MeshwrightError

_SHAPE = r"(\(?[0-9][0-9, ]*\)?)"
_SIZES = r"\{([^{}]*)\}"


@contextmanager
def as_typed(hardware: str = "--hardware") -> Iterator[None]:
    """Around what is called on behalf of the command line: errors say which option to give.

    ``hardware`` is the option that names the machine.
    """
    try:
        yield
    except MeshwrightError as error:
        error.fix = typed(error.fix, hardware)
        raise


def typed(fix: str, hardware: str = "--hardware") -> str:
    """Arguments of Python functions as options.

    >>> typed("hardware.get('tpu v6e')"), typed("Topology('tpu v5e', (4, 4))")
    ("--hardware 'tpu v6e'", "--hardware 'tpu v5e 4x4'")
    >>> typed("sizes={'I': 2, 'J': 1024}"), typed("while_steps=100, or a lax.scan")
    ('--size I=2,J=1024', '--while-steps 100, or a lax.scan')
    """
    fix = re.sub(r"(?:mw\.)?(?:hardware\.)?get\('([^']*)'\)", rf"{hardware} '\1'", fix)
    fix = re.sub(
        r"(?:mw\.)?(?:hardware\.)?get\('[^']*', (\w+)=…\)", rf"another {hardware}, or one whose file has \1", fix
    )
    fix = re.sub(
        rf"(?:mw\.)?(?:hardware\.)?Topology\(['\"]([^'\"]*)['\"], {_SHAPE}(?:, [^)]*)?\)",
        lambda m: f"{hardware} '{m[1]} {_shape(m[2])}'",
        fix,
    )
    fix = re.sub(r"(?:hardware|machine)=('[^']*')", rf"{hardware} \1", fix)
    fix = re.sub(r"^('[^']* [0-9x]+')$", rf"{hardware} \1", fix)
    fix = fix.removesuffix(" joins pods by the data-center network")
    fix = re.sub(r"slices=\d+, or a larger shape", f"a {hardware} of a larger shape", fix)
    fix = re.sub(rf"mw\.simulate\(program, topology, mesh_axes={_SIZES}\)", lambda m: f"--mesh {_sizes(m[1])}", fix)
    fix = re.sub(rf"(?:mesh|mesh_axes)={_SIZES}", lambda m: f"--mesh {_sizes(m[1])}", fix)
    fix = re.sub(rf"sizes={_SIZES}", lambda m: f"--size {_sizes(m[1])}", fix)
    fix = re.sub(r"plan_reshard\(shape, \"(\w+)\", src, dst\)", r"--dtype \1", fix)
    fix = re.sub(r"mw\.device_put\(x, dst\) copies.*", "a --target-mesh of as many devices", fix)
    fix = re.sub(r"compiled\.explain_sharding\((.*)\)", r"--value \1", fix)
    fix = re.sub(r"(dtype|mode|recompute)='(\w+)'", r"--\1 \2", fix)
    fix = re.sub(
        r"dist\.Strategy\(data=8\), or a model .*|(context|expert)=\[1\]|sequence_parallel=\[False\]|flash=True",
        "leave it out, or --model llama3-70b or another one",
        fix,
    )
    fix = re.sub(r"^microbatches=(\d+)", r"--microbatches \1", fix)
    return re.sub(r"while_steps=(\d+)", r"--while-steps \1", fix)


def _shape(text: str) -> str:
    found = ast.literal_eval(text)
    return "x".join(map(str, found if isinstance(found, tuple) else (found,)))


def _sizes(text: str) -> str:
    return re.sub(r"'([^']*)': *", r"\1=", text).replace(", ", ",")
