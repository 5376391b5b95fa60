"""The file that stands for a user's in the examples of commands."""

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import pallas as pl
from meshwright.pallas import ops

mesh = mw.make_mesh((2, 4), ("data", "model"))


def on(shape, *spec):
    return mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(mesh, mw.P(*spec)))


def feed(x, up, down):
    return (mnp.tanh(x @ up) @ down,)


def example():
    return mw.jit(feed), (on((64, 32), "data"), on((32, 128), None, "model"), on((128, 32), "model"))


def before():
    return mw.jit(feed), (on((64, 32), "data"), on((32, 128), None, "model"), on((128, 32), None, "model"))


def double(x_ref, y_ref):
    y_ref[...] = x_ref[...] * 2


def kernel():
    return pl.pallas_call(double, out_shape=mw.ShapeDtypeStruct((4,), mnp.float32)), (mnp.ones(4),)


def gathered(x, w):
    columns = mw.P(None, "x")
    body = lambda x, w: ops.all_gather_matmul(x, w, "x", tiles=(256, 512, 1024))
    return mw.shard_map(body, mesh=mw.make_mesh((4,), ("x",)), in_specs=(columns, columns), out_specs=columns)(x, w)


def model():
    def step(w, x):
        return w - 0.1 * mw.grad(lambda w: mnp.mean((x @ w) ** 2))(w)

    return step, mw.ShapeDtypeStruct((256, 256), "float32"), mw.ShapeDtypeStruct((64, 256), "float32")
