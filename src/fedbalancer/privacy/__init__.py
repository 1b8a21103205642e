"""Privacy as a number: what so many noisy releases give away, by the library dp-accounting."""

from fedbalancer.privacy.accounting import DELTA, Spending, composed, epsilon_of, most_releases, noise_for, spending_of

__all__ = ["DELTA", "Spending", "composed", "epsilon_of", "most_releases", "noise_for", "spending_of"]
