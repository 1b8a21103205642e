"""The items by name. A new item is a module or class in this package and a line in `ITEMS`."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from fedbalancer.core.errors import UnknownName

if TYPE_CHECKING:
    from fedbalancer.paper.item import Item

ITEMS = MappingProxyType({
    "table1": "speed-up and accuracy of all methods (Table 1), with FedBalancer-A and -S",
    "table3": "sensitivity of FedBalancer to w, lss, dss and p (Table 3)",
    "table4": "the devices (Table 4)",
    "table5": "all methods on a test bed of 21 emulated phones (Table 5)",
    "fig1": "gradient norms of single samples over rounds (Figure 1)",
    "fig2": "fixed deadlines of 0.5 to 2 T, and SmartPC (Figure 2)",
    "fig4": "the efficiency of deadlines, DDL-E (Figure 4)",
    "fig5a": "noise on the metadata that clients share (Figure 5a)",
    "fig5b": "with and without a forward pass in every round (Figure 5b)",
    "fig6": "the contribution of each part of FedBalancer (Figure 6)",
    "fig7": "FedBalancer combined with Oort, q-FFL and Structured Updates (Figure 7)",
    "fig8": "latencies of the test bed's phones (Figure 8)",
})  # fmt: skip
"""Items with their descriptions for `fedbalancer paper --help`."""
_MODULES = {
    "table1": "table1", "table3": "table3", "table4": "devices", "table5": "testbed", "fig1": "fig1",
    "fig2": "comparisons", "fig4": "devices", "fig5a": "fig5a", "fig5b": "comparisons", "fig6": "comparisons",
    "fig7": "comparisons", "fig8": "testbed",
}  # fmt: skip


def load_item(name: str) -> Item:
    """Return the item of this name.

    Raises:
        UnknownName: If there is no such item.
    """
    if name not in ITEMS:
        raise UnknownName("item", name, ITEMS)
    item: Item = getattr(import_module(f"fedbalancer.paper.items.{_MODULES[name]}"), name.upper())
    return item
