"""Experiment tracking: `Sink` is the base class of custom trackers (`fedbalancer.store.tracking`)."""

from fedbalancer.store.tracking import STOP, Sink

__all__ = ["STOP", "Sink"]
