"""Golden rounds: what other people's runs logged, replayed through this project's own server and engine."""

from fedbalancer.testing.golden.checks import replay_golden
from fedbalancer.testing.golden.report import GoldenCheck, GoldenReport

__all__ = ["GoldenCheck", "GoldenReport", "replay_golden"]
