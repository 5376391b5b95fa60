"""What errors of pipelines say, word for word."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.driver import ANY, F32, numbers, out

ROWS = pl.BlockSpec((8, 16), lambda i: (i, 0))


def double(x_ref, z_ref):
    z_ref[...] = x_ref[...] * 2


def with_scratch(x_ref, z_ref, scratch_ref):
    scratch_ref[...] = x_ref[...]
    z_ref[...] = scratch_ref[...]


def trees(x, z):
    z["s"][...] = x["u"][...]
    z["d"][...] = x["v"][...]


def emitted(body: Any = double, *, refs: Any = lambda x, z: (x, z), out_specs: Any = ROWS, accumulate: Any = False,
            in_specs: Any = (ROWS,), **given: Any) -> Any:  # fmt: skip
    """A kernel with a pipeline in it."""

    def kernel(x_ref, z_ref, *_):
        pipeline = pltpu.emit_pipeline(
            body, grid=(2,), in_specs=in_specs, out_specs=out_specs, should_accumulate_out=accumulate
        )
        pipeline(*refs(x_ref, z_ref), **given)

    return kernel


pipeline, make_allocations = pltpu.emit_pipeline_with_allocations(
    double, grid=(2,), in_specs=[ROWS], out_specs=ROWS, should_accumulate_out=True
)


def fused(allocations: Any = lambda made: made, **callbacks: Any) -> Any:
    """A kernel with a pipeline whose memory is its parent's."""

    def kernel(x_ref, z_ref, made):
        pipeline(x_ref, z_ref, allocations=allocations(made), init_allocations=True, **callbacks)

    return kernel


def prefetching(force_copy: Any) -> Any:
    """A kernel with a pipeline that prefetches for a run that does not come."""

    def epilogue(args):
        given = pltpu.PipelinePrefetchArgs(args.pipeline_refs, args.pipeline_allocations, args.pipeline_buffers)
        args.start_pipeline_prefetch(given, force_copy=force_copy)

    return fused(epilogue=epilogue)


def other_shapes(args: Any) -> None:
    refs = args.make_pipeline_refs(args.pipeline_refs.input[0].at[0:8], *args.pipeline_refs.out)
    args.start_pipeline_prefetch(pltpu.PipelinePrefetchArgs(refs, None, None))


KERNELS: dict[str, Any] = {
    "a body without acc_steps": emitted(partial(double, acc_steps=2)),
    "a body that wants scratch memory": emitted(with_scratch),
    "no scratch memory": emitted(with_scratch, scratchs=3),
    "one operand": emitted(refs=lambda x, z: (x,)),
    "an array": emitted(refs=lambda x, z: (x, mnp.ones((16, 16)))),
    "too many flags": emitted(accumulate=[True, False]),
    "a flag that is none": emitted(accumulate=None),
    "an output that the body works on itself": emitted(out_specs=ANY, accumulate=True),
    "specs of another tree": emitted(trees, in_specs=[{"u": ROWS}], refs=lambda x, z: ({"u": x, "v": x}, z)),
    "a prologue that returns nothing": fused(prologue=lambda _: None),
    "a prologue of three parts": fused(prologue=lambda _: (True, True, True)),
    "a prologue for three inputs": fused(prologue=lambda _: (False, ([True, True, True], False))),
    "an out_prologue that returns an array": fused(out_prologue=lambda _: mnp.ones(2)),
    "an out_epilogue of another tree": fused(out_epilogue=lambda _: {"a": True}),
    "force_copy for three inputs": prefetching(([True, True, True], False)),
    "a prologue that is no function": fused(prologue=((True, True), (True, True))),
    "an epilogue without arguments": fused(epilogue=lambda: None),
    "refs in the place of what to prefetch": fused(
        epilogue=lambda args: args.start_pipeline_prefetch(args.pipeline_refs)
    ),
    "refs of other shapes": fused(epilogue=lambda args: other_shapes(args)),
    "what is not allocated": fused(lambda made: make_allocations(F32, F32)),
    "what is allocated for fewer": fused(lambda made: made[:1]),
    "an axis twice": lambda x_ref, z_ref, made: lax.axis_index(("x", "x")),
    "an axis that is not there": lambda x_ref, z_ref, made: lax.psum(1, ("x", "y")),
}

CALL = "pipeline(*refs(x_ref, z_ref), **given)"
EMIT = "pipeline = pltpu.emit_pipeline("
FUSED = "pipeline(x_ref, z_ref, allocations=allocations(made), init_allocations=True, **callbacks)"
FLAG = "  why:  a flag is True or False, or an array of rank 0\n  fix:  True, or a condition: step == 0"

MESSAGES = {
    "a body without acc_steps": f"""\
The body of a pipeline cannot take the 2 refs it is given.
  at:   FILE:N   {CALL}
  why:  got an unexpected keyword argument 'acc_steps'; it is given blocks of 1 inputs and 1 outputs and 0 of scratch \
memory, in this order
  fix:  one parameter for each: def body(x_ref, …, out_ref, …, scratch_ref, …, *, acc_steps)""",
    "a body that wants scratch memory": f"""\
The body of a pipeline cannot take the 2 refs it is given.
  at:   FILE:N   {CALL}
  why:  missing a required argument: 'scratch_ref'; it is given blocks of 1 inputs and 1 outputs and 0 of scratch \
memory, in this order
  fix:  one parameter for each: def body(x_ref, …, out_ref, …, scratch_ref, …)""",
    "no scratch memory": f"""\
A pipeline is given 3 as scratch memory.
  at:   FILE:N   {CALL}
  why:  its body is given refs, which the parent has allocated
  fix:  scratches=[scratch_ref]""",
    "one operand": f"""\
A pipeline of 1 inputs and 1 outputs gets 1 operands.
  at:   FILE:N   {CALL}
  why:  it takes one ref per in_spec and one per out_spec
  fix:  emit_pipeline(…)(x_ref, y_ref, out_ref)""",
    "an array": f"""\
Operand 1 of a pipeline is a Array.
  at:   FILE:N   {CALL}
  why:  blocks come from memory and go to memory
  fix:  pass the ref or a part of it, ref.at[...], not what a load returned""",
    "too many flags": f"""\
should_accumulate_out has 2 flags for 1 operands.
  at:   FILE:N   {EMIT}
  why:  it is one flag for all, or one for each
  fix:  [True]""",
    "a flag that is none": f"""\
should_accumulate_out has None in the place of a flag.
  at:   FILE:N   {EMIT}
{FLAG}""",
    "an output that the body works on itself": f"""\
should_accumulate_out names an output with BlockSpec(None, memory_space=ANY).
  at:   FILE:N   {CALL}
  why:  its body works on that memory itself, so there is no block to add
  fix:  pl.BlockSpec((8, 128), lambda i, j: (i, j)) for it, or False in should_accumulate_out""",
    "specs of another tree": f"""\
Operand 0 of a pipeline is {{'u': *, 'v': *}}, its specs are {{'u': *}}.
  at:   FILE:N   {CALL}
  why:  the specs of an operand are a prefix of its tree: one for all of it, or its containers with specs
  fix:  pl.BlockSpec((8, 128), lambda i, j: (i, j)) for all of it""",
    "a prologue that returns nothing": f"""\
What the prologue skips has None in the place of a flag.
  at:   FILE:N   {FUSED}
{FLAG}""",
    "a prologue of three parts": f"""\
What the prologue returns has 3 parts.
  at:   FILE:N   {FUSED}
  why:  it has two, which copies it skips and which it waits for, or is one flag for both
  fix:  ([True, False], False)""",
    "a prologue for three inputs": f"""\
What the prologue waits for has 3 flags for 1 operands.
  at:   FILE:N   {FUSED}
  why:  it is one flag for all, or one for each
  fix:  [True]""",
    "an out_prologue that returns an array": f"""\
What the out_prologue returns has Array([1., 1.], dtype=float32) in the place of a flag.
  at:   FILE:N   {FUSED}
{FLAG}""",
    "an out_epilogue of another tree": f"""\
What the out_epilogue returns has {{'a': True}} for an operand of 1 refs.
  at:   FILE:N   {FUSED}
  why:  its flags are a prefix of the operand's tree: one for all of it, or its containers with flags
  fix:  True""",
    "force_copy for three inputs": """\
force_copy has 3 flags for 1 operands.
  at:   FILE:N   args.start_pipeline_prefetch(given, force_copy=force_copy)
  why:  it is one flag for all, or one for each
  fix:  [True]""",
    "a prologue that is no function": f"""\
((True, True), (True, True)) cannot be a callback of a pipeline.
  at:   FILE:N   {FUSED}
  why:  it is called while the pipeline runs
  fix:  a function of one argument: lambda args: …""",
    "an epilogue without arguments": f"""\
A callback of a pipeline cannot take what it is given.
  at:   FILE:N   {FUSED}
  why:  too many positional arguments
  fix:  a function of one argument: lambda args: …""",
    "refs in the place of what to prefetch": """\
start_pipeline_prefetch is not given the refs of the next run.
  at:   FILE:N   epilogue=lambda args: args.start_pipeline_prefetch(args.pipeline_refs)
  why:  it takes PipelinePrefetchArgs with what make_pipeline_refs returns for them
  fix:  pltpu.PipelinePrefetchArgs(
            args.make_pipeline_refs(x_ref, out_ref), args.pipeline_allocations, args.pipeline_buffers
        )""",
    "refs of other shapes": """\
float32[8, 16] is prefetched for input 0 of the pipeline.
  at:   FILE:N   args.start_pipeline_prefetch(pltpu.PipelinePrefetchArgs(refs, None, None))
  why:  in this run it is float32[16, 16], and both are cut into the same blocks
  fix:  refs of the shapes that the pipeline is called with, in the same order: \
args.make_pipeline_refs(x_ref, out_ref)""",
    "what is not allocated": f"""\
A pipeline is given VMEM((2, 8, 16), float32) as the memory of an operand.
  at:   FILE:N   {FUSED}
  why:  its windows are scratch memory of the parent, made before the pipeline runs
  fix:  scratch_shapes=[make_allocations(pltpu.ANY((), mnp.float32), …)], and the ref of it as allocations=""",
    "what is allocated for fewer": f"""\
A pipeline of 1 inputs and 1 outputs, 1 of them accumulating, gets allocations for 1, 0, 0.
  at:   FILE:N   {FUSED}
  why:  it takes what its make_allocations says, or one BufferedRef per operand where none accumulates
  fix:  pipeline, make_allocations = pltpu.emit_pipeline_with_allocations(…)""",
    "an axis twice": """\
axis_index is given ('x', 'x') as its axes, in a kernel.
  at:   FILE:N   "an axis twice": lambda x_ref, z_ref, made: lax.axis_index(("x", "x")),
  why:  the devices along an axis take part once
  fix:  lax.axis_index('x')""",
    "an axis that is not there": """\
A kernel asks for the mesh axis 'y'.
  at:   FILE:N   "an axis that is not there": lambda x_ref, z_ref, made: lax.psum(1, ("x", "y")),
  why:  it runs over 'x'
  fix:  call it in a shard_map over that axis""",
}


def message(call: Any, *args: Any) -> str:
    with pytest.raises(pltpu.KernelError) as caught:
        call(*args)
    return re.sub(r"test_pipeline_messages\.py:\d+", "FILE:N", str(caught.value))


def call(kernel: Any, allocations: Any = None) -> Any:
    allocations = make_allocations(F32, F32) if allocations is None else allocations
    return pl.pallas_call(kernel, out(16, 16), in_specs=[ANY], out_specs=ANY, scratch_shapes=[allocations])


@pytest.mark.parametrize("name", KERNELS)
def test_the_whole_message(name):
    one = mw.make_mesh((1,), ("x",))
    function = mw.shard_map(call(KERNELS[name]), mesh=one, in_specs=mw.P(), out_specs=mw.P("x"))
    assert message(function, numbers(16, 16)) == MESSAGES[name]


def test_buffers_that_are_for_another_operand():
    assert message(call(fused(), make_allocations(mnp.bfloat16, F32)), numbers(16, 16)) == (
        "The buffers of input 0 of the pipeline hold bfloat16[8, 16], its blocks are float32[8, 16].\n"
        f"  at:   FILE:N   {FUSED}\n"
        "  why:  the operand is float32[16, 16] in ANY; the allocations were made for another one\n"
        "  fix:  make_allocations(pltpu.ANY((16, 16), 'float32'), …) for it"
    )
    in_vmem = make_allocations(pltpu.VMEM((16, 16), F32), F32)
    assert message(call(fused(), in_vmem), numbers(16, 16)) == (
        "Input 0 of the pipeline is in ANY, and no buffer is allocated for it.\n"
        f"  at:   FILE:N   {FUSED}\n"
        "  why:  the allocations are for an operand in VMEM, which needs none\n"
        "  fix:  make_allocations(pltpu.ANY((16, 16), 'float32'), …) for it"
    )
    assert message(make_allocations, "nope", F32) == (
        "Buffers are asked for with 'nope'.\n"
        "  at:   FILE:N   call(*args)\n"
        "  why:  they are for an operand of a dtype, in a memory space\n"
        "  fix:  pltpu.ANY((), mnp.float32), or mnp.float32"
    )


def test_a_window_that_holds_what_the_run_before_worked_on():
    whole = pl.BlockSpec((8, 8), lambda i: (0, 0))
    fixed, allocate = pltpu.emit_pipeline_with_allocations(
        double, grid=(1,), in_specs=[whole], out_specs=whole, should_accumulate_out=True
    )

    def kernel(x_ref, z_ref, made):
        run = pl.program_id(0)
        first = run == 0
        fixed(x_ref.at[run], z_ref, allocations=made, init_allocations=first, prologue=lambda _: (run > 0, False))

    spec = [allocate(F32, F32)]
    made = pl.pallas_call(kernel, out(8, 8), grid=(2,), in_specs=[ANY], out_specs=ANY, scratch_shapes=spec)
    line = "fixed(x_ref.at[run], z_ref, allocations=made, init_allocations=first, prologue=lambda _: (run > 0, False))"
    assert message(made, numbers(2, 8, 8)) == (
        "The window of input 0 of the pipeline holds x_ref[0, :, :] at the start of a run on x_ref[1, :, :].\n"
        f"  at:   FILE:N   {line}\n"
        f"  why:  it was fetched at FILE:N   {line}\n"
        "        and is not fetched again: the block index stays (0, 0)\n"
        "  fix:  prefetch what the next run works on, with True for the operand in force_copy,\n"
        "        and True in the second part of what the prologue returns: it waits for that"
    )


def test_a_block_beyond_memory_that_has_no_buffer():
    ragged = pl.BlockSpec((8, 8), lambda i: (i, 0))
    plain, allocate = pltpu.emit_pipeline_with_allocations(double, grid=(2,), in_specs=[ragged], out_specs=ragged)

    def kernel(x_ref, z_ref, made):
        plain(x_ref, z_ref, allocations=made)

    types = [allocate(pltpu.VMEM((), F32), pltpu.VMEM((), F32))]
    text = message(pl.pallas_call(kernel, out(12, 8), scratch_shapes=types), numbers(12, 8))
    assert text == (
        "Block (1, 0) of input 0 of the pipeline reaches beyond it, and it has no buffer.\n"
        "  at:   FILE:N   ragged = pl.BlockSpec((8, 8), lambda i: (i, 0))\n"
        "  why:  the operand has shape (12, 8), its blocks (8, 8); the body works on the operand's own memory, "
        "which is smaller there\n"
        "  fix:  blocks that divide the operand"
    )
