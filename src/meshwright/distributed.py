"""Many processes as one machine: `initialize`, `process_count`, `process_index`.

>>> import meshwright as mw
>>> mw.distributed.process_count()
1
"""

from meshwright.engine.processes import initialize, process_count, process_index

__all__ = ["initialize", "process_count", "process_index"]
