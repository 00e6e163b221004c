"""How many tokens each expert gets where popularity is skewed as in real models."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv
from scipy.stats import poisson


def skewed_loads(  # noqa: PLR0913, what a generator of loads takes
    *,
    samples: int,
    experts: int,
    picks: int,
    variation: float,
    groups: int = 1,
    group_variation: float = 0.0,
    seed: int,
) -> NDArray[np.int64]:
    """[samples, experts] tokens of each expert where `picks` selections are made, in the order of experts.

    Popularities are gamma distributed with the coefficient of variation `variation`, times a gamma factor of
    `group_variation` for each of `groups` neighbouring groups (experts of one group are trained together and
    correlate); counts are Poisson over them, which is what independent tokens give. Quantiles of one set of uniform
    numbers: what is drawn changes little where the arguments change little.
    """
    rng = np.random.default_rng(seed)
    popularity = _gamma(rng.random((samples, experts)), variation)
    popularity *= np.repeat(_gamma(rng.random((samples, groups)), group_variation), -(-experts // groups), axis=1)[
        :, :experts
    ]
    popularity /= popularity.sum(axis=1, keepdims=True)
    return np.asarray(poisson.ppf(rng.random((samples, experts)), popularity * picks)).astype(np.int64)


def _gamma(quantiles: NDArray[np.float64], variation: float) -> NDArray[np.float64]:
    if variation == 0:
        return np.ones_like(quantiles)
    return np.asarray(gammaincinv(1 / variation**2, quantiles) * variation**2)
