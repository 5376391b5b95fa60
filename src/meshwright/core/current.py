"""The mesh that is current, kept apart from meshes so that asking for it does not load them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

current_mesh: ContextVar[Any] = ContextVar("current_mesh", default=None)
