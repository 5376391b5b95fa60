"""How a training step is laid out on devices: the one description that simulations, searches and commands take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.arguments import checked, one_of, whole
from meshwright.simulate.pipelines import SCHEDULES

RECOMPUTE = ("none", "attention", "matmuls", "full", "offload")
ELSEWHERE = {"selective": "attention", "block": "full", "dots": "matmuls"}  # what others call these
ZERO = (0, 1, 2, 3)
_DEGREES = ("data", "tensor", "pipeline", "microbatches", "chunks", "context", "expert")
recomputed = partial(one_of, (*RECOMPUTE, True, False), others=ELSEWHERE)


@dataclass(frozen=True, init=False, repr=False)
class Strategy:
    """How a training step is laid out: the sizes of the mesh's axes, and what is done along them.

    ==================  ============================================================================================
    ``data``            replicas, each with a part of the batch
    ``tensor``          devices that share heads, hidden dims and words
    ``pipeline``        stages of layers, which ``microbatches`` go through as ``schedule`` says, ``chunks`` per device
    ``microbatches``    without a pipeline: parts of the batch whose gradients are added up
    ``zero``            what the replicas share out: 1 the optimizer's state, 2 also gradients, 3 also parameters;
                        ``fsdp=True`` is 3
    ``recompute``       what is computed again backward instead of kept: "none", "attention" (scores and their softmax),
                        "matmuls" (all but the results of matmuls), "full" (a layer keeps its input alone) or "offload"
                        (the host keeps that input); True is "full", False "none"
    ``sequence_parallel``  between tensor-parallel layers a device of ``tensor`` has a part of the positions
    ``context``         devices that share the positions of a sequence, each with a block from either end of it, so that
                        a causal mask leaves them equal work; each gathers keys and values
    ``expert``          devices that share experts and send each other tokens; they have parts of the batch, too
    ``flash``           whether attention is one kernel, which never stores its scores
    ==================  ============================================================================================

    >>> Strategy(data=8, tensor=4, fsdp=True).devices
    32
    >>> Strategy(2, 4, recompute=True)
    Strategy(data=2, tensor=4, recompute='full')
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    microbatches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    zero: int = 0
    recompute: str = "none"
    sequence_parallel: bool = False
    context: int = 1
    expert: int = 1
    flash: bool = True

    @checked(
        "a strategy",
        schedule=partial(one_of, tuple(SCHEDULES)),
        zero=partial(one_of, ZERO),
        recompute=recomputed,
        **dict.fromkeys(_DEGREES, partial(whole, most=1 << 24)),
    )
    def __init__(
        self,
        data: int = 1,
        tensor: int = 1,
        pipeline: int = 1,
        microbatches: int = 1,
        schedule: str = "1f1b",
        chunks: int = 1,
        zero: int = 0,
        recompute: str | bool = "none",
        sequence_parallel: bool = False,
        context: int = 1,
        expert: int = 1,
        flash: bool = True,
        *,
        fsdp: bool = False,
    ) -> None:
        given: dict[str, Any] = {
            "data": data,
            "tensor": tensor,
            "pipeline": pipeline,
            "microbatches": microbatches,
            "schedule": schedule,
            "chunks": chunks,
            "zero": 3 if fsdp else zero,
            "recompute": RECOMPUTE[3 * recompute] if isinstance(recompute, bool) else recompute,
            "sequence_parallel": sequence_parallel,
            "context": context,
            "expert": expert,
            "flash": flash,
        }
        if (schedule != "interleaved") == (chunks > 1) and (chunks > 1 or pipeline > 1):
            raise HardwareError(
                f"The schedule {schedule} of a strategy has chunks={chunks}.",
                where=here(),
                why="an interleaved schedule has several chunks per device, every other one",
                fix="schedule='interleaved', chunks=2" if schedule == "interleaved" else "schedule='interleaved'",
            )
        for name, value in given.items():
            object.__setattr__(self, name, value)

    def with_(self, **changes: Any) -> Strategy:
        """The strategy with other values, which are not checked: for those who make thousands.

        >>> Strategy(data=8).with_(zero=3)
        Strategy(data=8, zero=3)
        """
        made: Strategy = object.__new__(Strategy)
        made.__dict__.update(self.__dict__)
        made.__dict__.update(changes)
        return made

    def __repr__(self) -> str:
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Strategy({', '.join(shown)})"

    @property
    def keeps_inputs(self) -> bool:
        """Whether a layer keeps its input alone, and its forward runs again."""
        return self.recompute in RECOMPUTE[3:]

    @property
    def on_host(self) -> bool:
        """Whether the host keeps the inputs of layers."""
        return self.recompute == RECOMPUTE[-1]

    @property
    def fsdp(self) -> bool:
        """Whether replicas share out parameters."""
        return self.zero == 3

    @property
    def devices(self) -> int:
        """The number of devices of the mesh."""
        return self.data * self.tensor * self.pipeline * self.context * self.expert

    @property
    def mesh_sizes(self) -> tuple[int, ...]:
        """The sizes of all axes: data, tensor, pipeline, context, expert."""
        return self.data, self.tensor, self.pipeline, self.context, self.expert

    @property
    def mesh(self) -> dict[str, int]:
        """The axes that have more than one device: neighbours share tensors, stages are furthest apart."""
        sizes = {
            "pipeline": self.pipeline,
            "data": self.data,
            "expert": self.expert,
            "context": self.context,
            "tensor": self.tensor,
        }
        return {name: size for name, size in sizes.items() if size > 1}
