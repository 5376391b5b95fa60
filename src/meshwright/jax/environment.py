"""What a JAX program can say of what runs it."""

from __future__ import annotations

import platform
from importlib import metadata

import numpy as np

from meshwright.jax.devices import default_backend, device_count, process_count
from meshwright.jax.version import __version__


def print_environment_info(return_string: bool = False) -> str | None:
    """Print, or return, the versions of what runs a program, and its devices.

    >>> print_environment_info(return_string=True).splitlines()[0]
    'jax:    0.10.2, by Meshwright'
    """
    lines = [
        f"jax:    {__version__}, by Meshwright",
        f"optree: {metadata.version('optree')}",
        f"numpy:  {np.__version__}",
        f"python: {platform.python_version()}",
        f"devices: {device_count()} of the kind {default_backend()}",
        f"process_count: {process_count()}",
        f"platform: {platform.platform()}",
    ]
    text = "\n".join(lines)
    if return_string:
        return text
    print(text)
    return None
