"""A device program is a program: its values, numbers, ops, types and bodies are those of programs."""

import pickle
import re

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist
from meshwright.core.facts import Structure
from meshwright.core.op import REGISTRY, Op
from meshwright.core.program import Eqn, Literal, Program, Var
from meshwright.core.types import TensorType
from meshwright.device.ops import OPS
from tests.device.models import MODELS

NESTED = """
def f(x: Tensor[(B, 4), 0], w: Tensor[(4, 2), 0]):
    xs = scatter(x, dim=0, device_keys=[])
    ws = broadcast(w, device_keys=[])
    ys = pmap(lambda {d}: lambda (a: Tensor[(B/2, 4), {d}], b: Tensor[(4, 2), {d}]): {{
        c = MatMul(a, b)
        e = mul(c, 2.0)
        return e
    }}, (xs, ws))
    y = gather(ys, dim=0, to_device=0)
    return y
"""


def every_eqn(program):
    for eqn in program.eqns:
        yield eqn
        for _, region in eqn.regions():
            yield from every_eqn(region)


def programs():
    yield "nested", dist.parse(NESTED.format(d="d"))
    for name, make in MODELS.items():
        model = make()
        yield name, model.function
        yield f"{name}_dp", dist.data_parallel(model.function, model.batch, parts=2)


PROGRAMS = dict(programs())


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_part_of_a_device_program_is_one_of_a_program(name):
    fn = PROGRAMS[name]
    assert isinstance(fn, Program)
    for eqn in every_eqn(fn):
        assert isinstance(eqn, Eqn)
        assert isinstance(eqn.op, Op)
        assert all(isinstance(x, Var | Literal) for x in eqn.inputs)
        assert all(v.type is None or isinstance(v.type, TensorType | dist.Tuple) for v in eqn.outputs)
        named = OPS.get(eqn.op.name) or REGISTRY[eqn.op.name]
        assert eqn.op is named
        regions = [region for key, region in eqn.regions() if key == "body"]
        if eqn.op.structure is Structure.PMAP:
            assert regions == [eqn.body]
            assert isinstance(eqn.body, Program)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_device_program_survives_its_text_and_pickling(name):
    fn = PROGRAMS[name]
    for copy in (dist.parse(str(fn)), pickle.loads(pickle.dumps(fn))):
        assert copy == fn
        assert hash(copy) == hash(fn)
        assert str(copy) == str(fn) == fn.to_text()


def test_programs_are_equal_up_to_names_of_values_and_devices():
    fn = dist.parse(NESTED.format(d="d"))
    assert fn == dist.parse(NESTED.format(d="e"))
    renamed = dist.parse(re.sub(r"\b(ys|c|a)\b", r"\1_other", NESTED.format(d="d")))
    assert renamed == fn
    assert str(renamed) != str(fn)
    for other in ("2.0:f16", "3.0"):
        assert fn != dist.parse(NESTED.format(d="d").replace("2.0", other))
    assert fn != dist.parse(NESTED.format(d="d").replace("Tensor[(4, 2), d]", "Tensor[(4, 2), d+1]"))
    assert fn != dist.parse(NESTED.format(d="d").replace("to_device=0", "to_device=1"))


def test_an_op_answers_to_its_name():
    eqn = dist.parse(NESTED.format(d="d")).eqns[2]
    assert eqn.op == "pmap" != "call"
    assert eqn.op in {"pmap"}
    assert f"{eqn.op}" == "pmap"
    assert REGISTRY["add"] == "add" != REGISTRY["mul"]


def test_the_op_that_takes_windows_is_another_than_the_collective():
    def take(x, index):
        return x[index]

    program = mw.make_program(take)(mnp.ones((6, 3)), mnp.asarray([1, 4]))
    fn = dist.from_program(program, ["x", "index"])
    (op,) = [eqn.op for eqn in fn.eqns if eqn.op == "take_windows"]
    assert pickle.loads(pickle.dumps(op)) is op
    assert dist.parse(str(fn)) == fn
    x = np.arange(18, dtype=np.float32).reshape(6, 3)
    np.testing.assert_array_equal(dist.execute(fn, [x, np.asarray([1, 4], np.int32)]), x[[1, 4]])
    there = dist.to_mesh(dist.data_parallel(fn, {"index": 0}, parts=2), [1, 2])
    assert "take_windows" not in str(there.program)
    np.testing.assert_array_equal(there(x, np.asarray([1, 4], np.int32)), x[[1, 4]])
