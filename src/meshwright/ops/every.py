"""Every module that defines ops: importing this one fills the registry, which reading a program's text relies on."""

from meshwright.ops import (
    basic,
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
    sorting,
    window,
)

MODULES = (
    basic,
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
    sorting,
    window,
)
