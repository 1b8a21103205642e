"""One run of every method beside FedAvg+1T: the pictures of docs/methods (python benchmarks/method_plots.py [NAME...]).

One task (`watch`, the embedded one), one seed: they show what a method does, not which is best.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

import fedbalancer as fb
from fedbalancer.reporting.style import size_text

FOLDER = Path(__file__).parent.parent / "docs" / "images" / "methods"
PAGES: dict[str, tuple[str, ...]] = {
    "oort": ("oort",),
    "oortbalancer": ("oort", "oortbalancer", "fedbalancer"),
    "power-of-choice": ("fedavg+1t+powerofchoice", "fedbalancer+powerofchoice"),
    "fedcs": ("fedavg+1t+fedcs",),
    "qffl": ("fedavg+1t+qffl", "fedbalancer", "fedbalancer+qffl"),
    "server-optimisers": ("fedavg+1t+fedadam", "fedavg+1t+fedyogi", "fedavg+1t+fedadagrad", "fedavg+1t+momentum"),
    "robust-means": ("fedavg+1t+median", "fedavg+1t+trimmedmean", "fedavg+1t+krum"),
    "structured": ("prox+1t+structured", "prox+1t+mask", "fedbalancer+structured"),
    "sketched": ("prox+1t+subsample", "prox+1t+quantised"),
    "signsgd": ("prox+1t+signsgd",),
    "graddrop": ("prox+1t+graddrop",),
    "ablations": (
        "fedbalancer", "fedbalancer-samples", "fedbalancer-deadline", "fedbalancer-clients",
        "fedbalancer+randomsamples",
    ),
}  # fmt: skip
_runs: dict[str, fb.RunResult] = {}


def result(method: str, budget_s: float | None = None) -> fb.RunResult:
    """A run of `watch`, seed 0, to FedAvg+1T's clock."""
    if method not in _runs:
        print(f"running {method}", file=sys.stderr)
        _runs[method] = fb.run("watch", method, seed=0, budget_s=budget_s)
    return _runs[method]


def draw(page: str, methods: tuple[str, ...]) -> None:
    """Accuracy over the simulated clock, and in the legend what one update weighs."""
    base = result("fedavg+1t")
    budget_s = float(base.rounds["end_s"][-1])
    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for method in ("fedavg+1t", *(name for name in methods if name != "fedavg+1t")):
        run = result(method, budget_s)
        up_bytes = run.rounds["up_bytes"].sum() / max(run.clients.filter(run.clients["outcome"].is_in(SENT)).height, 1)
        plain = method == "fedavg+1t"
        axes.plot(
            run.evals["clock_s"] / 60, run.evals["accuracy"], label=f"{method} ({size_text(up_bytes)} an update)",
            color="0.6" if plain else None, linestyle="--" if plain else "-",
        )  # fmt: skip
    axes.set(xlabel="Simulated minutes", ylabel="Accuracy", title="watch, one run, seed 0")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / f"{page}.png", dpi=130)
    plt.close(figure)


SENT = ("completed", "late")

if __name__ == "__main__":
    wanted = sys.argv[1:] or list(PAGES)
    for unknown in set(wanted) - set(PAGES):
        sys.exit(f"no page {unknown!r}; there are {', '.join(PAGES)}")
    for name in wanted:
        draw(name, PAGES[name])
        print(FOLDER / f"{name}.png")
