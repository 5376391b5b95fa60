"""Device programs: values on devices, nested pmap, device maps, transforms that compose.

>>> from meshwright import dist
>>> fn = dist.parse("def f(x: Tensor[(B, F), 0], w: Tensor[(F, H), 0]): y = MatMul(x, w) return y")
>>> [str(v.type) for v in dist.resolve(fn, B=8).outputs]
['Tensor[(8, H), 0]']
"""

from typing import Any

from meshwright.device.build import (
    allgather,
    allreduce,
    broadcast,
    function,
    gather,
    get_sub_device,
    pmap,
    reduce_scatter,
    scatter,
    send,
    tensor,
)
from meshwright.device.device_map import DeviceMap
from meshwright.device.dims import Dim
from meshwright.simulate.devices.distir import DistIR
from meshwright.device.execute import execute
from meshwright.device.from_program import from_program
from meshwright.device.function import DeviceEqn as Eqn
from meshwright.device.function import DeviceValue as Value
from meshwright.device.function import Function, Number
from meshwright.device.in_place import keep_in_place
from meshwright.search.layered import GPT
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.devices.pictures import draw
from meshwright.device.pipeline import pipeline_parallel
from meshwright.device.recompute import recompute
from meshwright.device.resolve import check, resolve
from meshwright.simulate.pipelines import SCHEDULES, Schedule
from meshwright.simulate.pipelines import PipelineTask as Task
from meshwright.search.result import SearchResult, explain_search
from meshwright.search.serving import ServingLayout, ServingResult, serving_search
from meshwright.search.strategies import estimate, grid_search, strategies
from meshwright.simulate.devices.simulate import simulate
from meshwright.simulate.devices.simulation import DeviceSimulation as Simulation
from meshwright.simulate.devices.steady import steady_state
from meshwright.search.strategy import Estimate
from meshwright.simulate.transformer.strategy import Strategy
from meshwright.device.text.reader import SlipWarning, parse
from meshwright.simulate.devices.simulation import DeviceEvent as Event
from meshwright.device.to_mesh import MeshPipeline, MeshProgram, to_mesh
from meshwright.search.traced import Traced, traced
from meshwright.device.transforms import data_parallel, horizontal_parallel, zero
from meshwright.device.types import Device, Tensor, Tuple
from meshwright.search.unrolled import MLP

__all__ = [
    "GPT",
    "MLP",
    "SCHEDULES",
    "Device",
    "DeviceMap",
    "Dim",
    "DistIR",
    "Eqn",
    "Estimate",
    "Event",
    "Function",
    "MeshPipeline",
    "MeshProgram",
    "Number",
    "OnTopology",
    "Schedule",
    "SearchResult",
    "ServingLayout",
    "ServingResult",
    "Simulation",
    "SlipWarning",
    "Strategy",
    "Task",
    "Tensor",
    "Traced",
    "Tuple",
    "Value",
    "allgather",
    "allreduce",
    "broadcast",
    "check",
    "data_parallel",
    "draw",
    "estimate",
    "execute",
    "explain_search",
    "from_program",
    "function",
    "gather",
    "get_sub_device",
    "grid_search",
    "horizontal_parallel",
    "keep_in_place",
    "parse",
    "pipeline_parallel",
    "pmap",
    "recompute",
    "reduce_scatter",
    "resolve",
    "scatter",
    "send",
    "serving_search",
    "simulate",
    "steady_state",
    "strategies",
    "to_mesh",
    "traced",
    "zero",
]


def __getattr__(name: str) -> Any:
    """Every tensor op is a name here: ``dist.MatMul``, ``dist.tanh``."""
    return tensor(name)
