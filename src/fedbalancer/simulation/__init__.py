"""Simulation of federated training on a virtual clock.

The engine runs rounds, executors (inline, pool, Ray) train clients, device models draw times, and attackers
falsify reports.
"""
