"""What an update loses and saves on its way to the server."""

from fedbalancer.client.compress.gradient_dropping import GradientDropping
from fedbalancer.client.compress.low_rank import LowRank
from fedbalancer.client.compress.none import NoCompression
from fedbalancer.client.compress.quantised import Quantised
from fedbalancer.client.compress.random_mask import RandomMask
from fedbalancer.client.compress.sign_sgd import SignSGD
from fedbalancer.client.compress.subsample import Subsample

__all__ = ["GradientDropping", "LowRank", "NoCompression", "Quantised", "RandomMask", "SignSGD", "Subsample"]
