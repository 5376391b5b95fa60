"""Measures how long ops take on the machine at hand: ``python benchmarks/measure.py --out raw.json``.

It needs Python, NumPy and whichever of jax or torch is there. The modules it runs are those of
``meshwright.engine.measuring``, imported without the rest of the package, which need not be installed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

SOURCE = Path(__file__).resolve().parent.parent / "src"


def main() -> int:
    """Run the measuring modules under packages that are empty but for their place."""
    for name in ("meshwright", "meshwright.engine"):
        package = ModuleType(name)
        package.__path__ = [str(SOURCE.joinpath(*name.split(".")))]
        sys.modules[name] = package
    from meshwright.engine.measuring.run import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
