"""Differential privacy: the epsilon of noisy releases (by dp-accounting), and private aggregation of the model."""

from fedbalancer.privacy.accounting import (
    DELTA,
    Spending,
    compose_noise,
    epsilon_of,
    most_releases,
    noise_for,
    spending_of,
)

__all__ = ["DELTA", "Spending", "compose_noise", "epsilon_of", "most_releases", "noise_for", "spending_of"]
