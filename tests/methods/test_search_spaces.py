"""Every method of the table has a search space whose values its policies accept."""

from __future__ import annotations

import pytest

from fedbalancer.core.errors import BadSetting
from fedbalancer.experiments.sweep.space import Range, Space
from fedbalancer.methods.search_spaces import CLIENT_RATE, MOST, SPACES, SearchSpace, space_of
from fedbalancer.methods.table import BASES


@pytest.mark.parametrize("method", BASES)
def test_every_method_of_the_table_has_its_own_space(method: str) -> None:
    assert method in SPACES, f"declare the search space of {method} in methods/search_spaces.py"
    space = Space.make(method, SPACES[method].texts)  # checks every listed value and both ends of every range
    assert len(SPACES[method].own) <= MOST
    assert len(space.parameters) >= 2, "a method with only the client's rate would be tuned less than the others"


@pytest.mark.parametrize("method", SPACES)
def test_trials_of_a_space_are_valid_different_and_stay_the_same(method: str) -> None:
    space = Space.make(method, SPACES[method].texts)
    names = [space.name(point) for point in space.spread(12)]
    assert len(set(names)) == 12
    assert [space.name(point) for point in space.spread(5)] == names[:5]


def test_all_methods_have_the_same_client_rates() -> None:
    rates = {str(Space.make(name, space.texts).parameters[0]) for name, space in SPACES.items()}
    assert rates == {CLIENT_RATE.replace("=.", "=0.")}
    (rate,) = Space.make("fedavg+1t", [CLIENT_RATE]).parameters
    assert isinstance(rate, Range)
    assert rate.at(0.5) == 1.0, "the centre is the task's rate"


def test_a_method_with_modifiers_has_the_space_of_its_base() -> None:
    assert space_of("fedavg+1t+fednova[epochs=2]") is SPACES["fedavg+1t"]
    assert space_of("prox+2t") is SPACES["prox+2t"]
    with pytest.raises(BadSetting, match="has no search space"):
        space_of("fedavg[deadline=.5T]")


def test_too_many_parameters_are_refused() -> None:
    with pytest.raises(BadSetting, match="has 4 hyper-parameters"):
        SearchSpace(("w=5,20", "lss=.1,.2", "dss=.1,.2", "p=.5,1"))
