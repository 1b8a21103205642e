"""Privacy as a number: what so many noisy releases give away, by the library dp-accounting."""

from fedbalancer.privacy.accounting import DELTA, epsilon_of, most_releases, noise_for

__all__ = ["DELTA", "epsilon_of", "most_releases", "noise_for"]
