"""How the names of ``meshwright`` itself, of ``random`` and ``tree`` may be called, to be given bad arguments.

Their results are compared with JAX's elsewhere. A call that returns a function is followed by a call of that function.
"""

from __future__ import annotations

from tests.numpy.calls.drawing import NotDrawn

X = "np_.ones((2, 3))"
KEY = "p.random.key(0)"
F = "lambda x: np_.sum(x * x)"

# The arguments of a call, and those of the function that it returns, if it does.
PACKAGE: dict[str, list[tuple[str, str]] | NotDrawn] = {
    "ShapeDtypeStruct": [("(2, 3), 'float32'", ""), ("(2,), 'int32', weak_type=True", "")],
    "checkpoint": [(F, X)],
    "custom_jvp": [(F, "")],
    "custom_vjp": [(F, "")],
    "device_get": [(X, "")],
    "device_put": [(X, ""), ("{'a': np_.ones(2)}", "")],
    "eval_shape": [(f"{F}, {X}", "")],
    "grad": [(F, X), (f"{F}, argnums=0, has_aux=False", X), (f"{F}, 0", X)],
    "hessian": [(F, X), (f"{F}, argnums=0", "np_.ones(2)")],
    "jacfwd": [(F, X), (f"{F}, argnums=0", X)],
    "jacobian": [(F, X)],
    "jacrev": [(F, X), (f"{F}, argnums=(0,)", X)],
    "jit": [
        (F, X),
        (f"{F}, static_argnums=()", X),
        (f"{F}, donate_argnums=0", X),
        ("lambda x, n: x * n, static_argnums=(1,)", f"{X}, 3"),
        ("lambda x, n: x * n, static_argnames=('n',)", f"{X}, n=3"),
        (f"{F}, in_shardings=None, out_shardings=None", X),
    ],
    "jvp": [(f"{F}, ({X},), ({X},)", "")],
    "linear_transpose": [(f"lambda x: 2 * x, {X}", X)],
    "linearize": [(f"{F}, {X}", "")],
    "make_mesh": [("(1,), ('x',)", "")],
    "remat": [(F, X)],
    "typeof": [(X, ""), ("3", "")],
    "value_and_grad": [(F, X), (f"{F}, argnums=(0,), has_aux=False", X)],
    "vjp": [(f"{F}, {X}", "")],
    "vmap": [
        (F, X),
        (f"{F}, in_axes=0, out_axes=0", X),
        (f"{F}, in_axes=(1,), axis_size=3", X),
        (f"{F}, axis_name='i'", X),
    ],
    **dict.fromkeys(
        (
            "AbstractMesh",
            "AxisType",
            "Mesh",
            "NamedSharding",
            "P",
            "PartitionSpec",
            "default_device",
            "devices",
            "get_mesh",
            "reshard",
            "set_mesh",
            "shard_map",
            "shmap",
        ),
        NotDrawn("of meshes and shardings: tests/sharding and tests/shard_map give them bad arguments"),
    ),
    **dict.fromkeys(
        (
            "Overlap",
            "check_partitioned",
            "checkpoint_name",
            "find_layout",
            "make_program",
            "no_implicit_comms",
            "parse_program",
            "plan_matmul",
            "plan_reshard",
            "simulate",
            "save",
            "set_engine",
            "load",
        ),
        NotDrawn("JAX has no such function; it is given bad arguments where it is tested"),
    ),
    **dict.fromkeys(
        (
            "Array",
            "MeshwrightError",
            "Program",
            "ad_checkpoint",
            "checkpoint_policies",
            "config",
            "debug",
            "dist",
            "distributed",
            "hardware",
            "image",
            "interop",
            "lax",
            "nn",
            "numpy",
            "pallas",
            "random",
            "scipy",
            "sharding",
            "testing",
            "tree",
        ),
        NotDrawn("not a function"),
    ),
}

RANDOM: dict[str, list[tuple[str, str]] | NotDrawn] = {
    "PRNGKey": [("0", "")],
    "bernoulli": [(f"{KEY}, 0.3, (2, 3)", ""), (f"{KEY}, p=np_.array([0.1, 0.5])", "")],
    "bits": [(f"{KEY}, (2,), 'uint32'", "")],
    "categorical": [(f"{KEY}, np_.zeros((2, 3)), axis=-1", ""), (f"{KEY}, np_.zeros((2, 3)), shape=(4, 2)", "")],
    "cauchy": [(f"{KEY}, (2,), 'float32'", "")],
    "choice": [(f"{KEY}, np_.arange(5), (3,)", ""), (f"{KEY}, 5, (3,), replace=False, axis=0", "")],
    "clone": [(KEY, "")],
    "exponential": [(f"{KEY}, (2,), 'float32'", "")],
    "fold_in": [(f"{KEY}, 7", "")],
    "gumbel": [(f"{KEY}, (2,), 'float32'", "")],
    "key": [("0", ""), ("3, impl='threefry2x32'", "")],
    "key_data": [(KEY, "")],
    "laplace": [(f"{KEY}, (2,), 'float32'", "")],
    "logistic": [(f"{KEY}, (2,), 'float32'", "")],
    "normal": [(f"{KEY}, (2, 3), 'float32'", ""), (f"{KEY}", "")],
    "permutation": [(f"{KEY}, 5", ""), (f"{KEY}, np_.ones((2, 3)), axis=1, independent=True", "")],
    "rademacher": [(f"{KEY}, (2,), 'int32'", "")],
    "randint": [(f"{KEY}, (2,), 0, 5", ""), (f"{KEY}, (2,), 0, 5, 'uint8'", "")],
    "split": [(f"{KEY}, 3", ""), (f"{KEY}", "")],
    "truncated_normal": [(f"{KEY}, -1.0, 1.0, (2,), 'float32'", "")],
    "uniform": [(f"{KEY}, (2, 3), 'float32', 0.0, 2.0", "")],
    "wrap_key_data": [("np_.array([0, 1], 'uint32')", "")],
}

TREE: dict[str, list[tuple[str, str]] | NotDrawn] = {
    "all": [("{'a': True}", "")],
    "flatten": [("{'a': 1, 'b': (2, 3)}", "")],
    "flatten_with_path": [("{'a': 1}", "")],
    "leaves": [("[1, 2]", "")],
    "leaves_with_path": [("[1, 2]", "")],
    "map": [("lambda x, y: x + y, [1, 2], [3, 4]", "")],
    "map_with_path": [("lambda k, x: x, [1, 2]", "")],
    "reduce": [("lambda a, b: a + b, [1, 2], 0", "")],
    "register_dataclass": NotDrawn("changes what the process knows of a class; tested by name"),
    "register_node": NotDrawn("changes what the process knows of a class; tested by name"),
    "structure": [("[1, 2]", "")],
    "transpose": [("p.tree.structure([1, 2]), p.tree.structure((1, 2)), [(1, 2), (3, 4)]", "")],
    "unflatten": [("p.tree.structure([1, 2]), [3, 4]", "")],
}

RANDOM.update(
    dict.fromkeys(
        [
            "double_sided_maxwell",
            "geometric",
            "lognormal",
            "maxwell",
            "multivariate_normal",
            "orthogonal",
            "pareto",
            "rayleigh",
        ],
        NotDrawn("compared by name in test_polynomials"),
    )
)
RANDOM.update(
    dict.fromkeys(
        [
            "ball", "beta", "binomial", "chisquare", "dirichlet", "f", "gamma", "generalized_normal", "loggamma",
            "multinomial", "poisson", "t",
        ],
        NotDrawn("compared by name in tests/random"),
    )
)  # fmt: skip
RANDOM.update(dict.fromkeys(["triangular", "wald", "weibull_min"], NotDrawn("compared by name in test_polynomials")))
PACKAGE.update(dict.fromkeys(("microbatched", "named_scope"), NotDrawn("JAX has none, or returns nothing to compare")))
