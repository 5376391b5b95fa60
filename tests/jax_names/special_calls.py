"""How special functions are called: where they are defined, by names of ``scipy.special``."""

from __future__ import annotations

from typing import Any

import numpy as np

Grid = tuple[np.ndarray[Any, Any], ...]


def _line(low: float, high: float, count: int = 60) -> Grid:
    return (np.linspace(low, high, count),)


def _powers(low: float, high: float, count: int = 60) -> Grid:
    return (np.logspace(low, high, count),)


def _both(positive: Grid) -> Grid:
    return (np.concatenate([-positive[0][::-1], positive[0]]),)


def _pairs(*sides: Grid) -> Grid:
    return tuple(x.ravel() for x in np.meshgrid(*(side[0] for side in sides), indexing="ij"))


# The operands that each is compared with SciPy for.
GRIDS: dict[str, Grid] = {
    "beta": _pairs(_line(0.1, 20, 12), _line(0.1, 20, 12)),
    "betainc": _pairs(_line(0.3, 8, 6), _line(0.4, 7, 6), _line(0.01, 0.99, 7)),
    "betaln": _pairs(_powers(-2, 2, 12), _powers(-2, 2, 12)),
    "boxcox": _pairs(_powers(-2, 2, 9), _line(-2, 2, 9)),
    "boxcox1p": _pairs(_powers(-2, 2, 9), _line(-2, 2, 9)),
    "comb": _pairs(_line(0, 11, 12), _line(0, 11, 12)),
    "dawsn": _both(_powers(-4, 3)),
    "digamma": _line(-4.7, 50),
    "entr": _line(-1, 5),
    "erf": _line(-4, 4),
    "erfc": _line(-4, 6),
    "erfcx": _line(-5, 40),
    "erfinv": _line(-0.999, 0.999),
    "exp1": _powers(-4, 1.8),
    "expi": _both(_powers(-2, 1.9)),
    "expit": _line(-20, 20),
    "expn": _pairs(_line(0, 9, 10), _powers(-3, 1.8, 12)),
    "factorial": _line(-1, 12),
    "fresnel": _both(_powers(-3, 1.3)),
    "gamma": _line(-4.7, 20),
    "gammainc": _pairs(_powers(-1, 1.3, 9), _powers(-1, 1.3, 9)),
    "gammaincc": _pairs(_powers(-1, 1.3, 9), _powers(-1, 1.3, 9)),
    "gammaln": _line(-5.3, 60),
    "gammasgn": _line(-5.3, 5),
    "hyp1f1": _pairs(_line(0.1, 4, 4), _line(0.2, 5, 4), _line(-10, 15, 6)),
    "hyp2f1": _pairs(
        _line(0.3, 2.5, 3), _line(0.4, 1.7, 2), _line(0.9, 4.2, 3), (np.array([-3, -0.5, 0.2, 0.8, 0.95]),)
    ),
    "i0": _line(-20, 20),
    "i0e": _line(-60, 60),
    "i1": _line(-20, 20),
    "i1e": _line(-60, 60),
    "kl_div": _pairs(_line(-0.5, 3, 9), _line(-0.5, 3, 9)),
    "log_ndtr": _line(-60, 12),
    "logit": _line(0.01, 0.99),
    "ndtr": _line(-8, 8),
    "ndtri": (np.concatenate([np.logspace(-30, -0.1, 40), 1 - np.logspace(-5, -0.1, 20)]),),
    "owens_t": _pairs(_line(-5, 5, 11), _line(-4, 4, 11)),
    "poch": _pairs(_line(0.2, 9, 9), _line(-0.1, 6, 9)),
    "rel_entr": _pairs(_line(-0.5, 3, 9), _line(-0.5, 3, 9)),
    "sici": _both(_powers(-3, 2)),
    "spence": _powers(-5, 5),
    "xlog1py": _pairs(_line(0, 4, 9), _line(-0.9, 4, 9)),
    "xlogy": _pairs(_line(0, 4, 9), _line(0.1, 4, 9)),
    "zeta": _pairs(_line(1.1, 12, 9), _line(0.3, 9, 9)),
}

# Functions of x: f32[8, 4] between 0.1 and 0.9, and what else of `sp` there is.
OF_ONE = """
sp.gamma(x)
sp.gammaln(x)
sp.digamma(x)
sp.polygamma(1, x)
sp.polygamma(np_.array([0, 1, 2, 3]), x)
sp.beta(x, x[0] + 1)
sp.betaln(x, 1 - x)
sp.betainc(2.0, 3.0, x)
sp.gammainc(2.5, 3 * x)
sp.gammaincc(2.5, 3 * x)
sp.zeta(2 + x, 1.5)
sp.boxcox(x, 0.5)
sp.boxcox1p(x, x[0])
sp.comb(5 + x, 2.0)
sp.factorial(x)
sp.poch(x, 2.0)
sp.multigammaln(x + 2, 3)
sp.loggamma(x)
sp.erf(x)
sp.erfc(x)
sp.erfcx(x)
sp.erfinv(x)
sp.dawsn(x)
sp.wofz(x)
sp.ndtr(x)
sp.ndtri(x)
sp.log_ndtr(x - 3)
sp.owens_t(x, 2 * x)
sp.exp1(x)
sp.expi(x)
sp.expi(-x)
sp.expn(3, x)
sp.sici(4 * x)
sp.fresnel(2 * x)
sp.spence(3 * x)
sp.i0(x)
sp.i0e(x)
sp.i1(x)
sp.i1e(x)
sp.hyp1f1(x, 1.5, 2 * x)
sp.hyp2f1(0.5, x, 1.7, x)
sp.entr(x)
sp.kl_div(x, x[0])
sp.rel_entr(x, 1 - x)
sp.logit(x)
sp.expit(x)
sp.xlogy(x, x)
sp.xlog1py(x, x)
sp.logsumexp(x, axis=0)
sp.softmax(x)
sp.log_softmax(x, axis=0)
sp.sph_harm_y(np_.array([0, 1, 2, 3]), np_.array([0, -1, 1, 2]), x, 2 * x, n_max=3)
image.resize(x, (4, 6), 'linear')
image.resize(x, (12, 3), 'cubic')
image.resize(x, (3, 9), 'lanczos3', antialias=False)
image.resize(x, (16, 8), 'nearest')
image.scale_and_translate(x, (6, 4), (0,), np_.array([0.7]), np_.array([0.2]), 'linear')
"""
