"""Engines run a plan: on a virtual clock here; on real devices elsewhere."""

from fedbalancer.engine.simulated import SimulatedEngine

__all__ = ["SimulatedEngine"]
