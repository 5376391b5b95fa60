"""Bad input: each gives one error with the user's line and a fix. The whole message is asserted."""

import linecache

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

X = mnp.ones((3, 4))
KEPT: list = []


def message(function) -> str:
    """The error of calling ``function``, which is one lambda on one line; that line must be named."""
    with pytest.raises(mw.MeshwrightError) as caught:
        function()
    line = function.__code__.co_firstlineno
    text = linecache.getline(__file__, line).strip()
    shown = f"test_errors_say_what_to_write.py:{line}   {text}"
    assert caught.value.where == shown, caught.value
    return str(caught.value).replace(shown, "HERE")


def expect(function, what, why, fix):
    assert message(function) == f"{what}\n  at:   HERE\n  why:  {why}\n  fix:  {fix}"


def test_shapes_that_do_not_broadcast():
    expect(
        lambda: X + mnp.ones(5),
        "add cannot broadcast f32[3,4] and f32[5].",
        "counted from the right, dim -1 has sizes 4 and 5, and neither is 1",
        "add a dim to broadcast over: x[:, :, None]",
    )


def test_dtypes_that_differ_in_an_op():
    expect(
        lambda: lax.add(mnp.ones(3), mnp.ones(3, int)),
        "add cannot take f32[3], i32[3].",
        "the operands differ in dtype",
        "x.astype(y.dtype)",
    )


def test_shapes_that_differ_in_an_op():
    expect(
        lambda: lax.add(mnp.ones(3), mnp.ones(4)),
        "add cannot take f32[3], f32[4].",
        "the operands differ in shape and neither is a scalar",
        "mnp.broadcast_to(x, y.shape), or the function of the same name in meshwright.numpy",
    )


def test_vectors_that_have_no_cross_product():
    expect(
        lambda: mnp.cross(mnp.ones((4, 2)), mnp.ones(2)),
        "mnp.cross cannot take f32[4,2] and f32[2].",
        "a vector has three components",
        "a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]",
    )
    expect(
        lambda: mnp.cross(X, X),
        "mnp.cross cannot take f32[3,4] and f32[3,4].",
        "a vector has three components",
        "axis= names the dim of the components",
    )


def test_a_product_whose_dims_do_not_meet():
    expect(
        lambda: X @ X,
        "matmul cannot take f32[3,4] and f32[3,4].",
        "dim 1 of the left has size 4, dim 0 of the right has size 3, and they are summed over together",
        "transpose the left operand: x.T if it is x, x if it is x.T",
    )
    assert (X.T @ X).shape == (4, 4)
    expect(
        lambda: X @ mnp.ones((5, 4)),
        "matmul cannot take f32[3,4] and f32[5,4].",
        "dim 1 of the left has size 4, dim 0 of the right has size 5, and they are summed over together",
        "transpose the right operand: y.T if it is y, y if it is y.T",
    )
    expect(
        lambda: X @ mnp.ones((7, 1)),
        "matmul cannot take f32[3,4] and f32[7,1].",
        "dim 1 of the left has size 4, dim 0 of the right has size 7, and they are summed over together",
        "a right operand of shape (4, 1), or a left one of shape (3, 7)",
    )
    assert (X @ mnp.ones((4, 1))).shape == (mnp.ones((3, 7)) @ mnp.ones((7, 1))).shape == (3, 1)
    expect(
        lambda: mnp.ones((2, 3, 4)) @ mnp.ones((5, 6, 7)),
        "matmul cannot take f32[2,3,4] and f32[5,6,7].",
        "dim 2 of the left has size 4, dim 1 of the right has size 6, and they are summed over together",
        "give dim 2 of the left and dim 1 of the right one size",
    )
    expect(
        lambda: mnp.vecdot(mnp.ones((3, 2)), mnp.ones((5, 3))),
        "mnp.vecdot cannot take f32[3,2] and f32[5,3].",
        "dim 1 of the left has size 2, dim 1 of the right has size 3, and they are summed over together",
        "give dim 1 of the left and dim 1 of the right one size",
    )
    expect(
        lambda: mnp.tensordot(mnp.ones((2, 3)), mnp.ones((3, 5)), 2),
        "mnp.tensordot cannot take f32[2,3] and f32[3,5].",
        "dim 0 of the left has size 2, dim 0 of the right has size 3, and they are summed over together",
        "give dim 0 of the left and dim 0 of the right one size",
    )


def test_a_reshape_that_does_not_fit():
    expect(
        lambda: X.reshape(5, 5),
        "f32[3,4] cannot be reshaped to (5, 5).",
        "it has 12 elements, and 5 * 5 is 25",
        "a shape of 12 elements, e.g. x.reshape(-1)",
    )


def test_python_if_on_a_tracer():
    def f(x):
        positive = x > 0
        return 1 if positive else 2

    with pytest.raises(mw.MeshwrightError) as caught:
        mw.jit(f)(1.0)
    start = f.__code__.co_firstlineno
    assert str(caught.value) == (
        "`if`, `while`, `and`, `or`, `not` or bool() needs the contents of a traced value bool[].\n"
        f"  at:   test_errors_say_what_to_write.py:{start + 2}   return 1 if positive else 2\n"
        "  why:  the function is being traced: the value stands for every run and has no contents yet\n"
        f"        the value was made at test_errors_say_what_to_write.py:{start + 1}   positive = x > 0\n"
        "  fix:  choose between values with mnp.where(condition, x, y), or between computations with\n"
        "        mw.lax.cond(condition, f, g, *operands); an argument that Python branches on can be made static:\n"
        "        mw.jit(f, static_argnums=…)"
    )


def test_a_tracer_as_a_size():
    expect(
        lambda: mw.jit(mnp.zeros)(3),
        "A shape needs the contents of a traced value int32[].",
        "the function is being traced: the value stands for every run and has no contents yet",
        "pass a shape as a Python int; make an argument of a jitted function static:\n"
        "        mw.jit(f, static_argnums=…)",
    )


def test_a_tracer_given_to_numpy():
    expect(
        lambda: mw.jit(lambda x: np.sin(x))(3.0),
        "NumPy needs the contents of a traced value float32[].",
        "the function is being traced: the value stands for every run and has no contents yet",
        "call the function of the same name in meshwright.numpy",
    )


def test_a_leaked_tracer():
    def leak(x):
        KEPT.append(x * 2)
        return x

    mw.jit(leak)(1.0)
    made = f"test_errors_say_what_to_write.py:{leak.__code__.co_firstlineno + 1}   KEPT.append(x * 2)"
    expect(
        lambda: KEPT[-1] + 1,
        "A traced value float32[] is used after the function it belongs to has returned.",
        "inside jit, grad, vmap or scan a value stands for many runs and has no contents of its own; "
        f"it was kept in a global, an attribute or a closure\n        it was made at {made}",
        "return the value from the function, and use what the call returns; give it to a kernel as an operand",
    )


def test_an_argument_that_is_no_array():
    expect(
        lambda: mw.jit(lambda tree: tree)({"name": object()}),
        "Argument 0['name'] is not an array or a number: its type is object.",
        "the leaves of what goes in and comes out must be arrays, NumPy arrays or numbers",
        "pass an array, or mark an argument static: mw.jit(f, static_argnums=…)",
    )


def test_a_result_that_is_no_array():
    expect(
        lambda: mw.jit(lambda x: "text")(1.0),
        "A result of the function is not an array or a number: its type is str.",
        "the leaves of what goes in and comes out must be arrays, NumPy arrays or numbers",
        "pass an array, or mark an argument static: mw.jit(f, static_argnums=…)",
    )


def test_trees_of_different_structures():
    expect(
        lambda: mw.tree.map(lambda a, b: a, {"a": 1}, {"b": 1}),
        "tree.map is given trees of different structures.",
        "dictionary key mismatch; expected key(s): ['a'], got key(s): ['b'], "
        "missing key(s): ['a'], extra key(s): ['b']; dict: {'b': 1}.",
        "pass trees with the same containers and keys; mw.tree.structure(x) shows them",
    )


def test_tangents_of_another_structure():
    expect(
        lambda: mw.jvp(lambda x: x["a"], ({"a": 1.0},), (1.0,)),
        "The tangents of jvp have another structure than the primals.",
        "PyTreeSpec(((*,), {})) is not PyTreeSpec((({'a': *},), {}))",
        "give one tangent of the same shape and dtype for each primal",
    )


def test_the_gradient_of_an_array():
    expect(
        lambda: mw.grad(lambda x: x * 2)(X),
        "grad needs a function that returns a scalar, but this one returns float32[3,4].",
        "a gradient is the derivative of one number",
        "reduce the result, for instance mnp.sum(result), or use mw.jacrev / mw.vjp",
    )


def test_the_gradient_by_an_integer():
    expect(
        lambda: mw.grad(lambda p: p["n"] * 2)({"n": 3}),
        "grad needs real inputs, but argument 0['n'] is int32[].",
        "integers and booleans have no derivative",
        "x.astype('float32'), or leave the argument out of argnums",
    )


def test_the_gradient_of_an_integer():
    expect(
        lambda: mw.grad(lambda x: (x > 0).sum())(3.0),
        "grad needs a function that returns a real scalar, but this one returns int32[].",
        "integers and booleans have no derivative, and complex results need holomorphic=True",
        "return a float, for instance result.astype('float32')",
    )


def test_the_gradient_of_a_pair():
    expect(
        lambda: mw.grad(lambda x: (x, x))(3.0),
        "grad needs a function that returns one scalar, but this one returns 2 values.",
        "a gradient is the derivative of one number",
        "return the scalar alone, or (scalar, aux) with has_aux=True",
    )


def test_the_gradient_by_an_argument_that_is_not_there():
    expect(
        lambda: mw.grad(lambda x: x, argnums=2)(3.0),
        "grad is asked for argument 2, but the call has 1 positional arguments.",
        "argnums counts positional arguments from 0",
        "mw.grad(f, argnums=0), or pass the argument by position",
    )


def test_aux_that_is_missing():
    expect(
        lambda: mw.grad(lambda x: [x], has_aux=True)(3.0),
        "With has_aux=True the function must return a pair (value, aux).",
        "it returned a list",
        "return loss, aux",
    )


def test_the_gradient_of_a_while_loop():
    expect(
        lambda: mw.grad(lambda x: lax.while_loop(lambda c: c < 10, lambda c: c * 2, x))(1.0),
        "while has no transpose.",
        "a while loop keeps no record of its steps, so it cannot be run backward; "
        "use lax.scan, or lax.fori_loop with bounds known while tracing",
        "keep it out of what is differentiated with mw.lax.stop_gradient(x), "
        "or give the function a rule of its own with mw.custom_jvp or mw.custom_vjp",
    )


def test_a_custom_rule_that_closes_over_a_differentiated_value():
    def loss(scale):
        @mw.custom_jvp
        def f(x):
            return x * scale

        f.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
        return f(2.0)

    with pytest.raises(mw.MeshwrightError) as caught:
        mw.grad(loss)(3.0)
    assert str(caught.value) == (
        "A function with a custom derivative closes over a value that is being differentiated.\n"
        f"  at:   test_errors_say_what_to_write.py:{loss.__code__.co_firstlineno + 6}   return f(2.0)\n"
        "  why:  its rule gives derivatives for its arguments only, so that value's share would be lost\n"
        "  fix:  pass the value as an argument of the function and of its rules"
    )


def test_a_batch_of_two_sizes():
    expect(
        lambda: mw.vmap(lambda a, b: a)(mnp.ones(3), mnp.ones(4)),
        "vmap needs one batch size.",
        "the mapped dims have sizes 3 at argument 0, 4 at argument 1",
        "pass arrays of equal size along the mapped dims, or in_axes=None for those that are shared",
    )


def test_a_carry_that_changes_its_type():
    expect(
        lambda: lax.scan(lambda c, x: (c.astype("int32"), None), mnp.ones(3), mnp.ones(3)),
        "The body of scan changes the type of its carry: it takes float32[3] and returns int32[3].",
        "every step must return a carry of the type it was given",
        "carry.astype('float32') in the body, or start from a carry of dtype int32",
    )


def test_a_scan_body_that_returns_no_pair():
    expect(
        lambda: lax.scan(lambda c, x: c, mnp.ones(3), mnp.ones(3)),
        "The function given to scan must return a pair (carry, y).",
        "it returned one value",
        "return carry, None",
    )


def test_branches_of_different_types():
    expect(
        lambda: lax.cond(True, lambda: mnp.ones(3), lambda: mnp.ones(4)),
        "The branches of cond return different types.",
        "result 0 is float32[4] in branch 0 and float32[3] in branch 1",
        "convert with .astype(…) or reshape so that all branches agree",
    )


def test_a_predicate_that_is_an_array():
    expect(
        lambda: lax.cond(mnp.ones(3) > 0, lambda: 1, lambda: 2),
        "The predicate of cond is bool[3].",
        "it must be one bool",
        "mnp.where(pred, x, y) chooses element by element; pred.any() or pred.all() makes one bool",
    )


def test_a_static_argument_that_cannot_be_hashed():
    expect(
        lambda: mw.jit(lambda x, sizes: x, static_argnums=1)(1.0, [1]),
        "The static argument 1 cannot be hashed: its type is list.",
        "a static argument is part of the key under which the compiled function is kept",
        "pass a tuple instead of a list, or do not mark the argument static",
    )


def test_a_donated_array():
    x = mnp.ones(4)
    mw.jit(lambda x: x + 1, donate_argnums=0)(x)
    expect(
        lambda: x + 1,
        "This array float32[4] has no contents any more.",
        "it was donated to a jitted function, which may overwrite it, or deleted",
        "use the function's result instead, or do not donate this argument",
    )


def test_assignment_to_an_element():
    expect(
        lambda: X.__setitem__(0, 1),
        "An array cannot be changed in place.",
        "programs compute new arrays from old ones",
        "x = x.at[…].set(y), or .add, .multiply, .min, .max",
    )


def test_every_error_is_a_meshwright_error_and_a_builtin_one():
    with pytest.raises(TypeError):
        lax.add(mnp.ones(3), mnp.ones(4))
    with pytest.raises(ValueError):
        mw.parse_program("nonsense")


@pytest.mark.parametrize("name", ["jit", "grad", "vmap", "checkpoint", "custom_jvp", "custom_vjp", "make_program"])
def test_what_is_not_a_function(name):
    expect(
        lambda: getattr(mw, name)(3),
        f"{name} is given 3, which is not a function.",
        f"mw.{name} takes a function and returns one",
        f"mw.{name}(f)(x), where f computes what you want from x",
    )


def test_a_static_argument_that_is_not_there():
    expect(
        lambda: mw.jit(abs, static_argnums=5),
        "jit is given argument 5, which the function does not have.",
        "abs takes x",
        "a position between 0 and 0",
    )


def test_a_cotangent_that_does_not_fit():
    expect(
        lambda: mw.linear_transpose(lambda x: x * 2, X)(mnp.ones(3)),
        "A cotangent of type float32[3] does not fit the result float32[3,4].",
        "a cotangent has the shape and dtype of its result",
        "mnp.asarray(cotangent, 'float32').reshape((3, 4))",
    )


def test_axes_of_a_batch_that_do_not_fit():
    expect(
        lambda: mw.vmap(lambda x: x, in_axes=(0, {"a": 1}))(X),
        "vmap's in_axes does not fit the arguments.",
        "it is (0, {'a': 1}), and the arguments are (*,)",
        "in_axes=0, or one entry per argument: a number or None",
    )


def test_a_policy_of_checkpoint():
    expect(
        lambda: mw.checkpoint(lambda x: x, policy="everything"),
        "checkpoint cannot take policy='everything'.",
        "a policy says of each equation whether its results are kept: policy(op, *types, **params)",
        "policy=mw.checkpoint_policies.dots_saveable, or another of mw.checkpoint_policies",
    )
    expect(
        lambda: mw.grad(mw.checkpoint(mw.numpy.sin, policy=lambda op, *types, **params: "save"))(3.0),
        "The policy test_a_policy_of_checkpoint.<locals>.<lambda>.<locals>.<lambda> answered 'save'.",
        "a policy says by True or False whether results are kept, or where: Offloadable(src, dst)",
        "policy=lambda op, *types, **params: False",
    )
    expect(
        lambda: mw.checkpoint_policies.save_only_these_names(["hidden"]),
        "save_only_these_names cannot take ['hidden'].",
        "it takes the names that were given by mw.checkpoint_name(x, name), each a string",
        "mw.checkpoint_policies.save_only_these_names('hidden', 'scores')",
    )
    expect(
        lambda: mw.checkpoint_policies.offload_dot_with_no_batch_dims("device", "disk"),
        "offload_dot_with_no_batch_dims cannot move values from 'device' to 'disk'.",
        "values are computed on the device, and the host has the memories pinned_host and unpinned_host",
        'offload_src="device", offload_dst="pinned_host"',
    )
    expect(
        lambda: mw.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=["a"],
            names_which_can_be_offloaded=["a", "b"],
            offload_src="device",
            offload_dst="pinned_host",
        ),
        "save_and_offload_only_these_names is to save 'a' and to offload it.",
        "a value is kept in the memory of the device or in that of the host",
        "names_which_can_be_offloaded=['b']",
    )
    expect(
        lambda: mw.checkpoint_name(X, 3),
        "checkpoint_name cannot take the name 3.",
        "a name is a string, and this is of type int",
        "mw.checkpoint_name(x, 'hidden')",
    )
    assert mw.grad(mw.checkpoint(lambda x: x * x, policy=None))(3.0) == 6.0


def test_a_batch_put_where_there_is_no_dim():
    expect(
        lambda: mw.vmap(lambda x: x, out_axes=5)(X),
        "vmap is to put the batch at dim 5 of a result of rank 2.",
        "with its batch the result has that many dims",
        "out_axes between -2 and 1",
    )


def test_an_argument_differentiated_twice():
    expect(
        lambda: mw.grad(lambda a, b: a, argnums=(0, 0))(1.0, 2.0),
        "grad is asked for one argument twice: argnums=(0, 0).",
        "each argument has one derivative",
        "mw.grad(f, argnums=(0,))",
    )


def test_the_jacobian_by_an_integer():
    expect(
        lambda: mw.jacfwd(lambda x: x)(1),
        "A Jacobian needs real or complex inputs, but argument 0 is int32[].",
        "integers and booleans have no derivative",
        "x.astype('float32'), or leave the argument out of argnums",
    )


@pytest.mark.parametrize("use", [lambda x: mw.vmap(lambda z: z)(x), lambda x: mw.jvp(lambda z: z, (x,), (x,))])
def test_a_leaked_tracer_as_an_argument(use):
    kept = []
    mw.jit(lambda x: kept.append(x) or x)(1.0)
    with pytest.raises(mw.MeshwrightError, match="is used after the function it belongs to has returned"):
        use(kept[0])
