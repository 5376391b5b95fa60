"""Bad input: one clear error each, whole messages."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist

SEQUENTIAL = dist.parse(
    "def f(wA: Tensor[(4, 6), 0], wB: Tensor[(6, 2), 0], x: Tensor[(8, 4), 0]):"
    " a = MatMul(x, wA) y = MatMul(a, wB) return y"
)
DATA = dist.data_parallel(SEQUENTIAL, {"x": 0})
NESTED = dist.horizontal_parallel(DATA, device_keys=["d"], parts=2)
ARITHMETIC = """def f(x: Tensor[(8,), 0]):
    xs = scatter(x, dim=0, devices=[1, 2])
    ys = pmap(lambda d: lambda (xi: Tensor[(4,), d]): {
        zs = broadcast(xi, devices=[d, d+1])
        ws = pmap(lambda dd: lambda (z: Tensor[(4,), dd]): { w = neg(z) return w }, (zs,))
        return ws
    }, (xs,))
    return ys"""

TRAINING = dist.from_program(
    mw.make_program(mw.value_and_grad(lambda w, v, x: mnp.sum(mnp.tanh(mnp.tanh(x @ w) @ v))))(
        *(mw.ShapeDtypeStruct(shape, "float32") for shape in ((4, 6), (6, 2), (8, 4)))
    ),
    ["w", "v", "x"],
)


def _schedule(*orders):
    return dist.Schedule(
        "mine", tuple(tuple(dist.Task(task[0], int(task[1:])) for task in order.split()) for order in orders)
    )


def _endless():
    tree = {}
    tree[1] = tree
    return tree


CASES = {
    "two_levels": (
        lambda: dist.DeviceMap({1: [2, 3], 2: [4, 5]}),
        "Device 2 stands in two places of a device map.\n"
        "  why:  it is at device_map[1][2] and at device_map[2]; two parts of the program would share it\n"
        "  fix:  give each group devices of its own; a device repeats only below itself, as 1 in {1: [1, 3]}",
    ),
    "shared": (
        lambda: dist.DeviceMap({1: [1, 3], 2: [2, 3]}),
        "Device 3 stands in two places of a device map.\n"
        "  why:  it is at device_map[1][3] and at device_map[2][3]; two parts of the program would share it\n"
        "  fix:  give each group devices of its own; a device repeats only below itself, as 1 in {1: [1, 3]}",
    ),
    "twice": (
        lambda: dist.DeviceMap([1, 1]),
        "Device 1 is listed twice in a device map.\n  why:  [1, 1] are the devices of one group\n  fix:  [1]",
    ),
    "notdev": (
        lambda: dist.DeviceMap({"a": [1]}),
        "'a' is not a device or a tree of devices.\n"
        "  why:  a device is a whole number from 0; a map is a list of devices, or a dict from devices to maps\n"
        "  fix:  DeviceMap({1: [1, 3], 2: [2, 4]})",
    ),
    "empty": (
        lambda: dist.DeviceMap([]),
        "A device map has no devices.\n  why:  the tree is empty\n  fix:  DeviceMap([1, 2])",
    ),
    "overlap": (
        lambda: dist.resolve(dist.parse(ARITHMETIC)),
        "Two replicas of a pmap use device 2.\n"
        "  at:   ys = pmap(xs)\n"
        "  why:  replicas 0 and 1 of ys both place values on it\n"
        "  fix:  give each replica devices of its own: a device map such as {1: [1, 3], 2: [2, 4]}",
    ),
    "missing_key": (
        lambda: dist.resolve(
            dist.parse("def f(x: Tensor[(8,), 0]): xs = scatter(x, dim=0, device_keys=[5]) return xs"), {1: [1, 3]}
        ),
        "The device map has no key 5.\n"
        "  at:   xs = scatter(x, dim=0, device_keys=[5])\n"
        "  why:  its keys are 1\n"
        "  fix:  device_keys=[1]",
    ),
    "leaf": (
        lambda: dist.resolve(NESTED, [1, 2]),
        "Device 1 has no devices below it in the device map.\n"
        "  at:   xs_hp: Tuple[Tensor[(8/N, 4), ?], Tensor[(8/N, 4), ?]] = broadcast(x, device_keys=[d])\n"
        "  why:  the map is [1, 2]: 1 is a leaf\n"
        "  fix:  DeviceMap({…, 1: [1, …]})",
    ),
    "nomap": (
        lambda: dist.resolve(DATA),
        "There is no device map.\n"
        "  at:   xs_dp: Tuple[Tensor[(8/N, 4), ?], ...] = scatter(x, dim=0, device_keys=[], parts=N)\n"
        "  why:  device_keys=[] is looked up in one\n"
        "  fix:  pass one: dist.resolve(fn, dist.DeviceMap({1: [1, 3], 2: [2, 4]}))",
    ),
    "unequal": (
        lambda: dist.resolve(
            dist.parse(
                "def f(x: Tensor[(8,), 0]): xs = scatter(x, dim=0, devices=[1, 2]) ys = broadcast(x, devices=[1, 2,"
                " 3]) zs = pmap(lambda d: lambda (a: Tensor[(4,), d], b: Tensor[(8,), d]): { c = neg(a) return c },"
                " (xs, ys)) return zs"
            )
        ),
        "The tuples of a pmap differ in length.\n"
        "  at:   zs = pmap(xs, ys)\n"
        "  why:  xs has 2, ys has 3\n"
        "  fix:  scatter or broadcast them over the same devices",
    ),
    "notdivide": (
        lambda: dist.resolve(DATA, [1, 2, 3]),
        "Dim 0 of size 8 does not divide into 3 equal parts.\n"
        "  at:   xs_dp: Tuple[Tensor[(8/N, 4), ?], ...] = scatter(x, dim=0, device_keys=[], parts=N)\n"
        "  why:  scatter gives each of 3 devices the same number of elements\n"
        "  fix:  a size that is a multiple of 3, or another number of devices",
    ),
    "notdivide2": (
        lambda: dist.data_parallel(SEQUENTIAL.with_(device_map=dist.DeviceMap([1, 2, 3])), {"x": 0}),
        "A dim of size 8 does not divide into 3 equal parts.\n"
        "  why:  dim 0 of x is split over 3 devices\n"
        "  fix:  a size that is a multiple of 3, or another number of devices",
    ),
    "different": (
        lambda: dist.resolve(dist.parse("def f(x: Tensor[(8,), 0], y: Tensor[(8,), 1]): z = add(x, y) return z")),
        "The operands of add are on different devices.\n"
        "  at:   z = add(x, y)\n"
        "  why:  x on 0, y on 1\n"
        "  fix:  send(y, to_device=0) first",
    ),
    "unknown": (
        lambda: dist.resolve(dist.parse("def f(x: Tensor[(8,), ?]): z = neg(x) return z")),
        "The device of the input x is not known.\n  why:  it is written Tensor[(8,), ?]\n  fix:  x: Tensor[(8,), 0]",
    ),
    "annotation": (
        lambda: dist.resolve(dist.parse("def f(x: Tensor[(8,), 0]): z: Tensor[(8,), 1] = neg(x) return z")),
        "z is on another device than its annotation says.\n"
        "  at:   z: Tensor[(8,), 1] = neg(x)\n"
        "  why:  it is written Tensor[(8,), 1], and is on device 0\n"
        "  fix:  z: Tensor[(8,), 0]",
    ),
    "shape": (
        lambda: dist.resolve(dist.parse("def f(x: Tensor[(B, F), 0]): z: Tensor[(F, B), 0] = neg(x) return z")),
        "z is not what its annotation says.\n"
        "  at:   z: Tensor[(F, B), 0] = neg(x)\n"
        "  why:  it is written Tensor[(F, B), 0], and is Tensor[(B, F), 0]: dim 0 is B, not F\n"
        "  fix:  z: Tensor[(B, F), 0]",
    ),
    "symbols": (
        lambda: dist.resolve(
            dist.parse("def f(x: Tensor[(B, 6), 0]): a = tanh(x) z = reshape(a, shape=(3, 4)) return z")
        ),
        "reshape cannot take f32[B,6].\n"
        "  at:   z = reshape(a, shape=(3, 4))\n"
        "  why:  6*B elements do not fill (3, 4)\n"
        "  fix:  mnp.reshape(x, …) with 6*B elements in all",
    ),
    "variable": (
        lambda: dist.resolve(dist.parse("def f(x: Tensor[(8,), 0]): z = send(x, to_device=d) return z")),
        "The device variable d is not bound here.\n"
        "  at:   z = send(x, to_device=d)\n"
        "  why:  it belongs to no enclosing pmap; the variables here are: none\n"
        "  fix:  use it inside `pmap(lambda d: lambda (…): {…}, …)`",
    ),
    "undefined": (
        lambda: dist.parse("def f(x: Tensor[(8,), 0]): z = neg(y) return z"),
        "y is not defined here.\n"
        "  at:   line 1\n"
        "        def f(x: Tensor[(8,), 0]): z = neg(y) return z\n"
        "                                           ^\n"
        "  why:  a body sees its own inputs only; the values here are: x\n"
        "  fix:  pass y to the pmap, or use one of the values above",
    ),
    "op": (
        lambda: dist.parse("def f(x: Tensor[(8,), 0]): z = frobnicate(x) return z"),
        "There is no op frobnicate.\n"
        "  at:   line 1\n"
        "        def f(x: Tensor[(8,), 0]): z = frobnicate(x) return z\n"
        "                                       ^\n"
        "  why:  it is neither a tensor op nor an op of device programs\n"
        "  fix:  one of allgather, allreduce, broadcast, call, gather, item, own_part, pmap, reduce_scatter,"
        " scatter, send, split, tuple, or a tensor op such as MatMul, add, tanh",
    ),
    "again": (
        lambda: dist.data_parallel(DATA, {"x": 0}),
        "The program is already spread on this level.\n"
        "  at:   xs_dp: Tuple[Tensor[(8/N, 4), ?], ...] = scatter(x, dim=0, device_keys=[], parts=N)\n"
        "  why:  device_keys=[] names a level that has scatter\n"
        "  fix:  device_keys=['d']",
    ),
    "var": (
        lambda: dist.horizontal_parallel(DATA, device_keys=["e"]),
        "No pmap here binds the device variable e.\n"
        "  why:  the variables on this level are: d\n"
        "  fix:  device_keys=['d']",
    ),
    "batchname": (
        lambda: dist.data_parallel(SEQUENTIAL, {"q": 0}),
        "f has no input q.\n  why:  its inputs are wA, wB, x\n  fix:  batch={'x': 0}",
    ),
    "whichbatch": (
        lambda: dist.pipeline_parallel(
            dist.parse("def f(w: Tensor[(4, 6), 0], x: Tensor[(8, 4), 0]): a = MatMul(x, w) y = tanh(a) return y"), 2, 2
        ),
        "The pipeline cannot tell which dim is the batch.\n"
        "  why:  2 dims are carried by every result\n"
        "  fix:  pipeline_parallel(fn, …, batch={'x': 0})",
    ),
    "stages": (
        lambda: dist.pipeline_parallel(SEQUENTIAL, 3, 1),
        "A program of 2 equations has no 3 stages.\n  why:  each stage runs one equation at least\n  fix:  stages=2",
    ),
    "cycle": (
        lambda: dist.pipeline_parallel(TRAINING, 2, 2, _schedule("F0 B0 F1 B1", "F1 B1 F0 B0"), {"x": 0}),
        "The schedule mine waits for itself.\n"
        "  why:  device 0: B0 waits for B0 of device 1\n"
        "        device 1: F1 waits for F1 of device 0\n"
        "  fix:  run each task after what it waits for; schedule='1f1b' is in order",
    ),
    "left_out": (
        lambda: dist.pipeline_parallel(TRAINING, 2, 2, _schedule("F0 F1 B0 B1", "F0 F1 B0"), {"x": 0}),
        "The schedule mine runs B1 0 times on device 1.\n"
        "  why:  every stage computes each phase of each microbatch once\n"
        "  fix:  B1 once among the tasks of device 1",
    ),
    "run_twice": (
        lambda: dist.pipeline_parallel(TRAINING, 2, 2, _schedule("F0 F1 B0 B0 B1", "F0 F1 B0 B1"), {"x": 0}),
        "The schedule mine runs B0 2 times on device 0.\n"
        "  why:  every stage computes each phase of each microbatch once\n"
        "  fix:  B0 once among the tasks of device 0",
    ),
    "pieces": (
        lambda: dist.execute(DATA, [np.ones(s, "f4") for s in ((4, 6), (6, 2), (8, 4))], [1, 2, 3]),
        "Dim 0 of size 8 does not divide into 3 equal parts.\n"
        "  at:   xs_dp: Tuple[Tensor[(8/N, 4), ?], ...] = scatter(x, dim=0, device_keys=[], parts=N)\n"
        "  why:  scatter gives each of 3 devices the same number of elements\n"
        "  fix:  a size that is a multiple of 3, or another number of devices",
    ),
    "microbatches": (
        lambda: dist.pipeline_parallel(SEQUENTIAL, 2, 3, batch={"x": 0}),
        "A dim of size 8 does not divide into 3 equal parts.\n"
        "  why:  dim 0 of x is split over 3 microbatches\n"
        "  fix:  a size that is a multiple of 3, or another number of microbatches",
    ),
    "fanout": (
        lambda: dist.pipeline_parallel(SEQUENTIAL.with_(device_map=dist.DeviceMap([1, 2, 3])), 2, 2),
        "A pipeline of 2 stages does not fit 3 devices.\n"
        "  why:  the device map [1, 2, 3] has 3 devices on this level\n"
        "  fix:  stages=3",
    ),
    "machine": (
        lambda: dist.simulate(DATA, [1, 2]),
        "There is no machine to simulate on.\n"
        "  why:  neither a topology nor assumptions are given\n"
        '  fix:  dist.simulate(fn, device_map, mw.hardware.Topology("h100", 8))',
    ),
    "machine in the place of the map": (
        lambda: dist.simulate(DATA, mw.hardware.Topology("h100", 4)),
        "There is no machine to simulate on.\n"
        "  why:  neither a topology nor assumptions are given; what comes second is a device map\n"
        '  fix:  dist.simulate(fn, device_map, mw.hardware.Topology("h100", 8))',
    ),
    "chips": (
        lambda: dist.simulate(DATA, [1, 9], mw.hardware.Topology("h100", 4)),
        "The machine has no chip for device 9.\n"
        "  why:  h100 4 has 4 chips: devices 1 to 4\n"
        "  fix:  a larger topology, or devices up to 4",
    ),
    "input": (
        lambda: dist.execute(SEQUENTIAL, {"x": 1}),
        "f has the inputs wA, wB, x.\n  why:  given are x\n  fix:  {'wA': …, 'wB': …, 'x': …}",
    ),
    "noreturn": (
        lambda: dist.parse("def f(x: Tensor[(8,), 0]): z = neg(x)"),
        "A function ends in a return.\n"
        "  at:   line 1\n"
        "        def f(x: Tensor[(8,), 0]): z = neg(x)\n"
        "                                             ^\n"
        "  fix:  return y",
    ),
    "chip_of_an_op": (
        lambda: dist.simulate(
            dist.parse("def f(x: Tensor[(9,), 5]): y = neg(x) return y"), topology=mw.hardware.Topology("h100", 1)
        ),
        "The machine has no chip for device 5.\n"
        "  why:  h100 1 has 1 chips: devices 1 to 1\n"
        "  fix:  a larger topology, or devices up to 1",
    ),
    "map_in_itself": (
        lambda: dist.DeviceMap(_endless()),
        "A device map has more than 100 levels.\n"
        "  why:  its groups hold groups without end, or nearly so\n"
        "  fix:  DeviceMap.grid(2, 4)",
    ),
    "grid": (
        lambda: dist.DeviceMap.grid(2, 0),
        "A grid of 2, 0 has no devices.\n"
        "  why:  it takes the number of devices at each level, from 1\n"
        "  fix:  DeviceMap.grid(2, 4)",
    ),
    "many_keys": (
        lambda: dist.DeviceMap.grid(100_000)[0],
        "The device map has no key 0.\n"
        "  why:  its keys are 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, …\n"
        "  fix:  device_keys=[1]",
    ),
    "task_twice": (
        lambda: _schedule("F0 F0 B0").run(),
        "The schedule mine runs F0 2 times on device 0.\n"
        "  why:  every stage computes each phase of each microbatch once\n"
        "  fix:  F0 once among the tasks of device 0",
    ),
    "no_task": (
        lambda: _schedule("X0").gantt(),
        "The schedule mine has no task X0.\n"
        "  why:  a task is F, B or W of a microbatch from 0, and of a chunk from 0 to 0\n"
        "  fix:  Task('F', 0)",
    ),
    "no_tasks": (
        lambda: _schedule("", "").gantt(),
        "The schedule mine has no tasks.\n"
        "  why:  it has 2 devices and no microbatches\n"
        "  fix:  dist.SCHEDULES['1f1b'](2, 4)",
    ),
    "schedule_of_nothing": (
        lambda: dist.SCHEDULES["zb-h1"](2, 0),
        "The schedule zb-h1 has a device, a microbatch and a chunk at least.\n"
        "  why:  devices=2, microbatches=0, chunks=1\n"
        "  fix:  dist.SCHEDULES['zb-h1'](2, 4)",
    ),
    "schedule_of_other_devices": (
        lambda: dist.pipeline_parallel(TRAINING, 2, 1, _schedule("F0 B0"), {"x": 0}),
        "The schedule mine is for 1 devices, the pipeline has 2.\n"
        "  why:  a schedule lists the tasks of each device\n"
        "  fix:  stages=1",
    ),
    "size": (
        lambda: dist.resolve(dist.parse("def f(x: Tensor[(B,), 0]): y = neg(x) return y"), B=-1),
        "B is -1.\n  why:  it is the size of a dim: a whole number\n  fix:  B=8",
    ),
    "batch": (
        lambda: dist.data_parallel(SEQUENTIAL, "x"),
        "batch is 'x'.\n  why:  it names inputs and their batch dims\n  fix:  batch={'x': 0}",
    ),
    "keys": (
        lambda: dist.horizontal_parallel(DATA, device_keys="d"),
        "device_keys is 'd'.\n  why:  it is a list of keys\n  fix:  device_keys=['d']",
    ),
    "deep": (
        lambda: dist.parse("def f(x:\n" + "Tuple[" * 2000),
        "Brackets are nested too deep.\n"
        "  at:   line 2\n"
        "        " + ("Tuple[" * 30)[5:125] + "\n"
        "        " + " " * 60 + "^\n"
        "  why:  they may stand 100 deep\n"
        "  fix:  y: Tensor[(B, H), 0] = MatMul(x, w)",
    ),
    "digits": (
        lambda: dist.parse("def f(x: Tensor[(2,),\n" + "9" * 5000 + "]): return x"),
        "A number has at most 400 digits.\n"
        "  at:   line 2\n"
        "        " + "9" * 120 + "\n"
        "        ^\n"
        "  why:  this has 5000\n"
        "  fix:  y: Tensor[(B, H), 0] = MatMul(x, w)",
    ),
    "minus": (
        lambda: dist.parse("def f(x: Tensor[(2,), 0]): y = neg(x, a=-(1,)) return y"),
        "A number is expected after '-', not '('.\n"
        "  at:   line 1\n"
        "        def f(x: Tensor[(2,), 0]): y = neg(x, a=-(1,)) return y\n"
        "                                                 ^\n"
        "  fix:  mul(x, -2.0)",
    ),
    "model": (
        lambda: dist.grid_search("gpt", mw.hardware.Topology("h100", 4), batch=4),
        "'gpt' is not a model.\n"
        "  why:  a search costs a model made of layers, or a training step that is traced\n"
        "  fix:  dist.GPT(layers=12, dim=768, heads=12), or dist.traced(step, params, batch)",
    ),
    "one_device": (
        lambda: mw.simulate(DATA, "h100"),
        "A device program is simulated on all its devices.\n"
        "  why:  mw.simulate looks at the program of one device\n"
        '  fix:  dist.simulate(fn, device_map, mw.hardware.Topology("h100", 8))',
    ),
    "stablehlo": (
        lambda: mw.interop.mlir.dump(SEQUENTIAL),
        "A device program is not written as StableHLO.\n"
        "  why:  StableHLO has no values on several devices, and no sizes that are symbols\n"
        "  fix:  mlir.dump(dist.to_mesh(fn, device_map, B=8).program), the code of one device of a mesh",
    ),
    "degree": (
        lambda: dist.MLP(4, 8, 8).unrolled(data=-1, microbatches=-2),
        "data is -1.\n  why:  it is a whole number from 1\n  fix:  data=2",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_clear_error(name):
    act, message = CASES[name]
    with pytest.raises(mw.MeshwrightError) as error:
        act()
    assert str(error.value) == message


@pytest.mark.parametrize("parts", ["N", "0", "-1", "1.5"])
def test_a_split_has_a_whole_number_of_parts(parts):
    text = f"def f(x: Tensor[(8,), 0]): y = split(x, dim=0, parts={parts}) return y"
    with pytest.raises(mw.MeshwrightError) as error:
        dist.check(dist.parse(text))
    assert str(error.value) == (
        f"The parts of split is a whole number.\n  at:   y = split(x, dim=0, parts={parts})\n"
        f"  why:  it is {parts}\n  fix:  parts=1"
    )
