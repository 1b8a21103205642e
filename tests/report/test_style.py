"""A method can be told by its look."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.report.style import KNOWN, looks

names = st.lists(st.one_of(st.sampled_from(list(KNOWN)), st.text(min_size=1, max_size=8)), max_size=14, unique=True)


@given(names)
def test_no_two_methods_look_alike_and_those_of_the_paper_always_look_the_same(methods: list[str]) -> None:
    chosen = looks(methods)
    assert list(chosen) == methods
    assert len({(look.colour, look.dash) for look in chosen.values()}) == len(methods)
    assert all(chosen[method] == KNOWN[method] for method in methods if method in KNOWN)
