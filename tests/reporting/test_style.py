"""Methods can be distinguished by their style."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.reporting.style import KNOWN, choose_looks

names = st.lists(st.one_of(st.sampled_from(list(KNOWN)), st.text(min_size=1, max_size=8)), max_size=14, unique=True)


@given(names)
def test_no_two_methods_look_alike_and_those_of_the_paper_always_look_the_same(methods: list[str]) -> None:
    chosen = choose_looks(methods)
    assert list(chosen) == methods
    assert len({(look.colour, look.dash) for look in chosen.values()}) == len(methods)
    assert all(chosen[method] == KNOWN[method] for method in methods if method in KNOWN)


def test_a_variant_has_a_colour_of_its_own_and_that_of_its_base_if_nobody_else_has() -> None:
    methods = ["fedavg+1t", "fedbalancer", "fedbalancer[w=5,p=.75]", "fedavg[deadline=.5T]", "fedbalancer-deadline"]
    assert len({look.colour for look in choose_looks(methods).values()}) == 5
    variants = choose_looks(["fedavg+1t", "canter", *(f"fedbalancer[w={w}]" for w in range(6))])
    assert variants["fedbalancer[w=0]"].colour == KNOWN["fedbalancer"].colour
    assert len({look.colour for look in variants.values()}) == 8
    assert len({variants[f"fedbalancer[w={w}]"].dash for w in range(4)}) == 4, "curves that coincide show through"


def test_every_colour_has_a_lighter_shade_for_a_dark_page() -> None:
    for look in choose_looks(["a", "b", "c", "d", "e", "f", "g", *KNOWN]).values():
        light, dark = (sum(int(colour[at : at + 2], 16) for at in (1, 3, 5)) for colour in (look.colour, look.dark))
        assert dark > light
