"""Every module that defines ops: importing this one fills the registry, which reading a program's text relies on."""

from meshwright.ops import (
    basic,
    collective,
    contraction,
    control,
    cumulative,
    custom,
    elementwise,
    indexing,
    linalg,
    random,
    reduction,
    scan,
    shape,
    shard_map,
    sorting,
    window,
)

MODULES = (
    basic,
    collective,
    contraction,
    control,
    cumulative,
    custom,
    elementwise,
    indexing,
    linalg,
    random,
    reduction,
    scan,
    shape,
    shard_map,
    sorting,
    window,
)
