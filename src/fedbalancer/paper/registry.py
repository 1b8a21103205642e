"""The items by name. A new one is a file in `items` and a line here."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from fedbalancer.errors import UnknownName

if TYPE_CHECKING:
    from fedbalancer.paper.item import Item

ITEMS = MappingProxyType({
    "table1": "speed-up and accuracy of all methods (Table 1), with FedBalancer-A and -S",
    "table3": "how sensitive FedBalancer is to w, lss, dss and p (Table 3)",
    "table4": "what the devices are (Table 4)",
    "table5": "all methods on a test bed of 21 emulated phones (Table 5)",
    "fig1": "gradient norms of single samples over rounds (Figure 1)",
    "fig2": "fixed deadlines of 0.5 to 2 T, and SmartPC (Figure 2)",
    "fig4": "the efficiency of deadlines, DDL-E (Figure 4)",
    "fig5a": "noise on what clients share (Figure 5a)",
    "fig5b": "with and without a forward pass in every round (Figure 5b)",
    "fig6": "what the parts of FedBalancer bring (Figure 6)",
    "fig7": "FedBalancer together with Oort, q-FFL and Structured Updates (Figure 7)",
    "fig8": "latencies of the test bed's phones (Figure 8)",
})  # fmt: skip
"""What `fedbalancer paper --help` says of each."""


def item(name: str) -> Item:
    """The item of that name."""
    if name not in ITEMS:
        raise UnknownName("item", name, ITEMS)
    found: Item = import_module(f"fedbalancer.paper.items.{name}").ITEM
    return found
