"""Many processes as one machine: `initialize`, `process_count`, `process_index`, `barrier`.

>>> import meshwright as mw
>>> mw.distributed.process_count()
1
"""

from meshwright.engine.processes import barrier, initialize, process_count, process_index

__all__ = ["barrier", "initialize", "process_count", "process_index"]
