"""Load an example as it is written, or with its imports alone replaced by JAX's: the same program under both."""

import importlib.util
import pathlib
import sys
import types

FOLDER = pathlib.Path(__file__).parent


def load(name: str, package: str = "meshwright") -> types.ModuleType:
    """The example ``name`` as a module on ``package``, meshwright or jax."""
    path = FOLDER / f"{name}.py"
    text = path.read_text()
    if package == "jax":
        text = text.replace("import meshwright as mw", "import jax as mw")
        text = text.replace("import meshwright.numpy", "import jax.numpy").replace("from meshwright", "from jax")
    spec = importlib.util.spec_from_loader(f"{name}_on_{package}", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[spec.name] = module  # dataclasses look their module up
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module
