"""For pytest: ``--update-comms`` has ``assert_comms`` write its snapshots.

Put ``pytest_plugins = ["meshwright.pytest_plugin"]`` into ``conftest.py``.
"""

from __future__ import annotations

import os
from typing import Any

from meshwright.testing import UPDATE


def pytest_addoption(parser: Any) -> None:
    """The option."""
    parser.addoption("--update-comms", action="store_true", help="write what programs send to their snapshots")


def pytest_configure(config: Any) -> None:
    """Tell `assert_comms`, in processes that this one starts, too."""
    if config.getoption("--update-comms"):
        os.environ[UPDATE] = "1"
