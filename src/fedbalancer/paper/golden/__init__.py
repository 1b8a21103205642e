"""Golden rounds: logs of the authors' runs, replayed through the project's own server and engine."""

from fedbalancer.paper.golden.replay import GoldenCheck, GoldenReport, replay_golden

__all__ = ["GoldenCheck", "GoldenReport", "replay_golden"]
