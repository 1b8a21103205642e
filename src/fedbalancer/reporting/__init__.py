"""Reports: scoring, tables, charts, figures and pages of a run or a comparison, the dashboard and the leaderboard.

`score` scores runs, `write_report` writes the report of a folder, and `Comparison` holds the scores.
"""

from fedbalancer.reporting.comparison import Comparison, Cost, MethodScore, Score, SeedScore, TargetScore
from fedbalancer.reporting.ratio import Arrival, Estimate, Ratio
from fedbalancer.reporting.report import Report, score_folder, write_report
from fedbalancer.reporting.results import RunCurve
from fedbalancer.reporting.rule import Rule
from fedbalancer.reporting.scores import score, score_comparison
from fedbalancer.store.comparison import TARGETS

__all__ = [
    "TARGETS",
    "Arrival",
    "Comparison",
    "Cost",
    "Estimate",
    "MethodScore",
    "Ratio",
    "Report",
    "Rule",
    "RunCurve",
    "Score",
    "SeedScore",
    "TargetScore",
    "score",
    "score_comparison",
    "score_folder",
    "write_report",
]
