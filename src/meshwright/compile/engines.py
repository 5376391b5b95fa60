"""The engine that runs programs: which one, where none is named."""

from __future__ import annotations

from typing import Any

from meshwright.core.current import ENGINES, current_engine
from meshwright.core.source import here
from meshwright.errors import MeshwrightError


def check_engine(name: Any) -> None:
    """Refuse what is no engine; None is the current one."""
    if name is not None and name not in ENGINES:
        raise MeshwrightError(
            f"There is no engine {name!r}.",
            where=here(),
            why=f"there are {', '.join(map(repr, ENGINES))}",
            fix='engine="xla"',
        )


def set_engine(name: str) -> None:
    """Choose what runs programs that do not name their engine.

    ``"numpy"`` (at first) runs all devices of a mesh in this process. ``"xla"`` runs the code of each device on a real
    one, through JAX, with exactly the collectives that ``explain`` lists; ``"xla-stacked"`` the code of all of them on
    one real device. Ops that are not jitted are computed by NumPy.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mw.set_engine("xla")
    >>> float(mw.jit(lambda x: (x * 2).sum())(mnp.ones(3)))
    6.0
    >>> mw.set_engine("numpy")
    """
    if name is None:
        name = ""
    check_engine(name)
    current_engine.name = name
