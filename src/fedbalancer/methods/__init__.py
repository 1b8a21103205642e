"""Methods as compositions of policies: the table of methods, modifiers, method names and the policy registry."""

from fedbalancer.methods.table import BASES, FAMILIES, MODIFIERS, SLOTS, Method, load_policy, method, setup_of

__all__ = ["BASES", "FAMILIES", "MODIFIERS", "SLOTS", "Method", "load_policy", "method", "setup_of"]
