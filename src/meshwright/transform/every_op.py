"""Every module that defines ops which need no mesh: importing this one fills the registry for readers of text."""

from meshwright.ops import (
    basic,
    callback,
    collective,
    contraction,
    cumulative,
    elementwise,
    factorization,
    indexing,
    linalg,
    random,
    reduction,
    residual,
    shape,
    sorting,
    window,
)
from meshwright.transform.regions import control, custom, scan

MODULES = (
    basic,
    callback,
    collective,
    contraction,
    control,
    cumulative,
    custom,
    elementwise,
    factorization,
    indexing,
    linalg,
    random,
    reduction,
    residual,
    scan,
    shape,
    sorting,
    window,
)
