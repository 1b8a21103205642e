"""What an update loses and saves on its way to the server."""

from fedbalancer.client.compress.gradient_dropping import GradientDropping
from fedbalancer.client.compress.low_rank import LowRank
from fedbalancer.client.compress.none import NoCompression
from fedbalancer.client.compress.quantised import Quantised
from fedbalancer.client.compress.random_subset import RandomMask, Subsample
from fedbalancer.client.compress.sign_sgd import SignSGD

__all__ = ["GradientDropping", "LowRank", "NoCompression", "Quantised", "RandomMask", "SignSGD", "Subsample"]
