"""What a kernel may ask of the TPU it is written for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

from meshwright.core.source import here
from meshwright.hardware.chips import get
from meshwright.kernel.run.faults import KernelError
from meshwright.kernel.run.tasks import state


class ChipVersion(Enum):
    """Generations of TPUs whose numbers are known here."""

    TPU_V3 = "v3"
    TPU_V4 = "v4"
    TPU_V5E = "v5e"
    TPU_V5P = "v5p"
    TPU_V6E = "v6e"
    TPU_7X = "7x"

    def __str__(self) -> str:
        return str(self.value)


class CoreType(Enum):
    """Kinds of cores of a TPU; kernels run on tensor cores here."""

    TC = "TC"
    SC_SCALAR_SUBCORE = "SC_SCALAR_SUBCORE"
    SC_VECTOR_SUBCORE = "SC_VECTOR_SUBCORE"


class Tiling(Enum):
    """How the last two dims of an operand lie in memory: a fact for compilers, which changes no number."""

    COMPACT = "compact"
    SPARSE_CORE = "sparse_core"


@dataclass(frozen=True)
class TpuInfo:
    """A core of a TPU: sizes in elements and bytes, rates per second, as in the data of ``meshwright.hardware``."""

    chip_version: ChipVersion
    generation: int
    num_cores: int
    num_lanes: int
    num_sublanes: int
    mxu_column_size: int
    num_mxus: int
    num_accumulators: int
    vmem_capacity_bytes: int
    cmem_capacity_bytes: int
    smem_capacity_bytes: int
    hbm_capacity_bytes: int
    mem_bw_bytes_per_second: int
    bf16_ops_per_second: int
    int8_ops_per_second: int
    fp8_ops_per_second: int
    int4_ops_per_second: int
    sparse_core: None = None  # kernels run on tensor cores here

    @property
    def is_lite(self) -> bool:
        return self.chip_version in (ChipVersion.TPU_V5E, ChipVersion.TPU_V6E)


def get_tpu_info_for_chip(chip_version: ChipVersion, num_tensor_cores_per_logical_device: int = 1) -> TpuInfo:
    """A core of a generation of TPUs.

    >>> info = get_tpu_info_for_chip(ChipVersion.TPU_V6E, 1)
    >>> info.generation, info.mxu_column_size, info.vmem_capacity_bytes >> 20
    (6, 256, 128)
    """
    chip = get(f"tpu {chip_version.value}")
    cores = int(chip.known("cores", 1))
    found: Any = re.fullmatch(r"(\d+) x (\d+)x\d+", str(chip.facts["mxu"].value)) if "mxu" in chip.facts else None

    def each(name: str) -> int:
        return int(chip.known(name, 0) or 0) // cores

    return TpuInfo(
        chip_version=chip_version,
        generation=int(str(chip_version.value).strip("vepx")),
        num_cores=num_tensor_cores_per_logical_device,
        num_lanes=128,
        num_sublanes=8,
        mxu_column_size=int(found[2]) if found else 128,
        num_mxus=int(found[1]) if found else 1,
        num_accumulators=each("accumulators"),
        vmem_capacity_bytes=each("vmem_bytes"),
        cmem_capacity_bytes=each("cmem_bytes"),
        smem_capacity_bytes=each("smem_bytes"),
        hbm_capacity_bytes=each("hbm_bytes"),
        mem_bw_bytes_per_second=each("hbm_bytes_per_s"),
        bf16_ops_per_second=each("bf16_flops_per_s"),
        int8_ops_per_second=each("int8_flops_per_s"),
        fp8_ops_per_second=each("fp8_flops_per_s"),
        int4_ops_per_second=each("int4_flops_per_s"),
    )


def get_tpu_info() -> TpuInfo:
    """The core a kernel runs on: that of the clock it is simulated on, and without one a v5e, the default chip.

    >>> get_tpu_info().num_lanes
    128
    """
    task = state.task
    name = task.machine.clock.chip if task is not None else None
    if name is None:
        return get_tpu_info_for_chip(ChipVersion.TPU_V5E)
    try:
        return get_tpu_info_for_chip(ChipVersion(name.removeprefix("tpu ")))
    except ValueError:
        raise KernelError(
            f"get_tpu_info is asked on {name}.", where=here(), why="it is no TPU", fix='mw.simulate(…, "tpu v5e")'
        ) from None


def is_tpu_device() -> bool:
    """False: kernels run on the machine of this process."""
    return False
