"""Compressors: how updates are encoded for the network."""

from fedbalancer.client.compress.low_rank import LowRank
from fedbalancer.client.compress.quantised import Quantised, SignSGD
from fedbalancer.client.compress.sparse import GradientDropping, RandomMask, Subsample
from fedbalancer.client.compress.wire import NoCompression

__all__ = ["GradientDropping", "LowRank", "NoCompression", "Quantised", "RandomMask", "SignSGD", "Subsample"]
