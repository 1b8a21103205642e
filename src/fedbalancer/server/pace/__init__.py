"""Pace policies: control the loss-threshold ratio and the deadline ratio."""

from fedbalancer.server.pace.constant import ConstantPace
from fedbalancer.server.pace.median_control import MedianControl
from fedbalancer.server.pace.progress_control import ProgressControl
from fedbalancer.server.pace.ratio_control import PaceState, RatioControl
from fedbalancer.server.pace.utility import round_utility

__all__ = ["ConstantPace", "MedianControl", "PaceState", "ProgressControl", "RatioControl", "round_utility"]
