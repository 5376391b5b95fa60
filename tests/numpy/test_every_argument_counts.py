"""No function takes an argument that it never looks at, but for those that the result does not depend on."""

import ast
from collections.abc import Iterator
from pathlib import Path

import meshwright

# Why nothing depends on them.
WITHOUT_EFFECT = {
    "debug_print": {"partitioned": "a callback is given whole arrays"},
    "io_callback": {"sharding": "a callback is given whole arrays"},
    "pure_callback": {"sharding": "a callback is given whole arrays"},
    "make_array_from_single_device_arrays": {"dtype": "that of the arrays"},
    "pmap": {"backend": "devices are virtual"},
    "defjvp": {"symbolic_zeros": "a rule gets zeros that are there"},
    "axis_index": {"axis_name": "outside of all axes it is refused"},
    "axis_size": {"axis_name": "outside of all axes it is refused"},
    "einsum": {"optimize": "the order is the best in any case"},
    "_scatter": {"indices_are_sorted": "a promise"},
    "get": {"indices_are_sorted": "a promise", "unique_indices": "a promise"},
    "zeros": {"key": "not random"},
    "ones": {"key": "not random"},
    "init": {"key": "not random"},
    "conj": {"input_dtype": "the dtype of x is known"},
    "conv_dimension_numbers": {"rhs_shape": "the ranks are equal"},
    "reshape": {"copy": "arrays do not change"},
    "histogram_bin_edges": {"weights": "equal bins have no weights"},
    "polyval": {"unroll": "how a loop is written"},
    "polynomial": {"unroll": "how a loop is written"},
    "to_device": {"stream": "there are none"},
    "device_put": {"src": "arrays know where they are", "donate": "a permission"},
    "from_dlpack": {"copy": "arrays do not change"},
    "_sum_dtype": {"x64": "a key of its cache"},
    "_inexact": {"x64": "a key of its cache"},
    "_following": {"a": "its derivative alone depends on it"},
    "_following_logarithm": {"a": "its derivative alone depends on it"},
    "_slope_of_logarithm": {"out": "that is the sample"},
    "solved": {"outside": "its derivative alone depends on it", "coming": "its derivative alone depends on it"},
}


def ignored() -> Iterator[tuple[str, str]]:
    """Functions and those of their arguments that their bodies do not name."""
    package = Path(meshwright.__file__).parent
    folders = ("arrays", "compile", "api", "numpy", "lax", "random", "nn")
    for file in (package / "tree.py", *(file for folder in folders for file in (package / folder).rglob("*.py"))):
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef) or function.name.startswith("__"):
                continue
            if any(ast.unparse(one) == "overload" for one in function.decorator_list):
                continue
            named = {node.id for line in function.body for node in ast.walk(line) if isinstance(node, ast.Name)}
            arguments = function.args
            for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if one.arg not in named and one.arg not in ("self", "cls", "_"):
                    yield function.name, one.arg


def test_every_argument_counts() -> None:
    assert set(ignored()) == {(name, one) for name, given in WITHOUT_EFFECT.items() for one in given}
