"""FedBalancer over the settings of Table 2: their names as methods, and the choice of the best of them."""

from __future__ import annotations

from itertools import product

from fedbalancer.paper.printed import GRID, RECOMMENDED
from fedbalancer.spelling import one_name

BASE = "fedbalancer"


def grid_methods() -> dict[str, dict[str, float]]:
    """Every combination by the name of its method, those with the same w together: they share their first rounds. The
    recommended one is plain FedBalancer.

    >>> len(grid_methods()), list(grid_methods())[0]
    (36, 'fedbalancer[w=5,lss=.01,dss=.05,p=.75]')
    """
    combinations = [dict(zip(GRID, values, strict=True)) for values in product(*GRID.values())]
    return {method_name(settings): settings for settings in combinations}


def method_name(settings: dict[str, float]) -> str:
    """The method of a combination."""
    if settings == dict(RECOMMENDED):
        return BASE
    return one_name(f"{BASE}[{','.join(f'{key}={value:g}' for key, value in settings.items())}]")
