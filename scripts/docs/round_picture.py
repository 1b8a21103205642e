"""The picture of one round on the first page, drawn from a run that was made.

    fedbalancer run watch --method fedbalancer --rounds 60 --seed 0 --out runs/picture
    python scripts/docs/round_picture.py runs/picture --round 58

reads the run folder into docs/images/round.json and draws docs/images/round.svg (three panels side by side) and
docs/assets/round.html (the same panels, for a page of any width). Without a folder it draws the JSON that is there.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from html import escape
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
DATA, WIDE, PAGE = DOCS / "images" / "round.json", DOCS / "images" / "round.svg", DOCS / "assets" / "round.html"
WIDTH, HEIGHT = 340, 340
STYLE = """<style>
.fbr {
  --fbr-ink: #1d2b2a; --fbr-soft: #60706e; --fbr-rest: #c9d3d1;
  --fbr-main: #00796b; --fbr-light: #4db6ac; --fbr-mark: #c2410c;
}
@media (prefers-color-scheme: dark) { svg.fbr {
  --fbr-ink: #dfe7e6; --fbr-soft: #9fb0ae; --fbr-rest: #47585a;
  --fbr-main: #26a69a; --fbr-light: #80cbc4; --fbr-mark: #fb923c;
} }
.fbr text { font-family: system-ui, sans-serif; font-size: 13px; fill: var(--fbr-ink); }
.fbr .head { font-weight: 700; font-size: 15px; }
.fbr .soft { fill: var(--fbr-soft); font-size: 12px; }
.fbr .step { fill: var(--fbr-main); font-weight: 700; }
.fbr .mark { fill: var(--fbr-mark); font-size: 12px; }
.fbr .main { fill: var(--fbr-main); }
.fbr .light { fill: var(--fbr-light); }
.fbr .rest { fill: var(--fbr-rest); }
.fbr .line { fill: none; stroke: var(--fbr-main); stroke-width: 2; }
.fbr .cut { stroke: var(--fbr-mark); stroke-width: 1.5; stroke-dasharray: 4 3; }
</style>"""


def facts(folder: Path, number: int) -> dict[str, Any]:
    """Read one round and the next from the tables of a run folder."""
    import polars as pl

    rounds = pl.read_parquet(folder / "rounds.parquet")
    rows = {row["round"]: row for row in rounds.iter_rows(named=True)}
    clients = pl.read_parquet(folder / "clients.parquet").filter(pl.col("round") == number).to_dicts()
    evals = pl.read_parquet(folder / "evals.parquet").filter(pl.col("round") <= number)
    wanted = ("deadline_s", "loss_threshold", "selected", "completed", "samples", "loss_low", "loss_high")
    return {
        "round": number,
        **{key: rows[number][key] for key in wanted},
        "next_deadline_s": rows[number + 1]["deadline_s"],
        "next_threshold": rows[number + 1]["loss_threshold"],
        "clients": clients,
        "everybody": pl.read_parquet(folder / "population.parquet").select("client", "samples", "device").to_dicts(),
        "accuracy": evals.select("clock_s", "accuracy").rows(),
        "epochs": json.loads((folder / "manifest.json").read_text())["settings"]["epochs"],
    }


def plan_panel(data: dict[str, Any]) -> str:
    """Draw the phones, the selected ones, and their order."""
    chosen = {row["client"] for row in data["clients"]}
    parts = [_text(0, 18, f"The server plans round {data['round']}", "head")]
    for place, who in enumerate(data["everybody"]):
        x, y, radius = 26 + place % 8 * 41, 58 + place // 8 * 44, math.sqrt(who["samples"]) * 1.05
        parts.append(f'<circle cx="{x}" cy="{y}" r="{radius:.1f}" class="{_shade(who["client"] in chosen)}"/>')
    notes = (
        f"{len(data['everybody'])} phones; area: number of samples.",
        f"{data['selected']} selected: high losses, not too slow.",
    )
    parts += [_text(0, 148 + 18 * line, words, "soft") for line, words in enumerate(notes)]
    order = (
        ("1", "each receives the model,"),
        ("", f"a loss threshold of {data['loss_threshold']:.3f},"),
        ("", f"a deadline of {data['deadline_s']:.1f} s."),
    )
    return "".join([*parts, *_steps(order, 206)])


def run_panel(data: dict[str, Any]) -> str:
    """Draw what each phone does until the deadline."""
    has = {who["client"]: who for who in data["everybody"]}
    scale = (WIDTH - 20) / data["deadline_s"]
    parts = [_text(0, 18, "Each phone selects, trains, reports", "head")]
    for place, row in enumerate(data["clients"]):
        y = 46 + place * 45
        who = has[row["client"]]
        parts.append(_text(0, y, f"{who['device']} phone: {row['samples']} of {who['samples']} samples, "
                                 f"{row['epochs']:g} of {data['epochs']} epochs"))  # fmt: skip
        parts += _bar(row, y + 6, scale)
    end = data["deadline_s"] * scale
    foot = 46 + len(data["clients"]) * 45
    parts.append(f'<line x1="{end:.1f}" x2="{end:.1f}" y1="30" y2="{foot - 14}" class="cut"/>')
    parts.append(
        f'<text x="{end:.1f}" y="{foot}" text-anchor="end" class="mark">deadline {data["deadline_s"]:.1f} s</text>'
    )
    steps = (
        ("2", "samples above the threshold, as many as fit"),
        ("3", "epochs that fit before the deadline"),
        ("4", "the update, and statistics of its losses"),
    )
    return "".join([*parts, *_steps(steps, foot + 4, 17)])


def observe_panel(data: dict[str, Any]) -> str:
    """Draw what the server computes from the reports."""
    held = sum(
        who["samples"] for who in data["everybody"] if who["client"] in {row["client"] for row in data["clients"]}
    )
    points = data["accuracy"]
    last_s, accuracy = points[-1]
    best = max(value for _, value in points)
    place = [f"{WIDTH * clock / last_s * 0.97:.1f},{140 - 96 * value / best:.1f}" for clock, value in points]
    x, y = place[-1].split(",")
    parts = [
        _text(0, 18, "The server observes", "head"),
        f'<polyline points="{" ".join(place)}" class="line"/><circle cx="{x}" cy="{y}" r="4" class="main"/>',
        _text(0, 162, f"accuracy {accuracy:.3f} after {last_s:,.0f} simulated seconds", "soft"),
    ]
    steps = (
        ("5", f"{data['completed']} of {data['selected']} reports in time become the new"),
        ("", f"model: {data['samples']:,} of their {held:,} samples trained"),
        ("6", f"losses {data['loss_low']:.3f} to {data['loss_high']:.3f}; the next"),
        ("", f"threshold is {data['next_threshold']:.3f}"),
        ("7", f"the next deadline: {data['next_deadline_s']:.1f} s"),
    )
    return "".join([*parts, *_steps(steps, 206)])


def wide(data: dict[str, Any]) -> str:
    """All three side by side, as one file."""
    inside = "".join(
        f'<g transform="translate({20 + number * (WIDTH + 40)} 10)">{panel}</g>'
        for number, panel in enumerate(_panels(data))
    )
    size = f"{3 * (WIDTH + 40)} {HEIGHT + 20}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" class="fbr" role="img">'
    return f"{head}<title>{_title(data)}</title>{STYLE}{inside}</svg>\n"


def page(data: dict[str, Any]) -> str:
    """The three panels, each an image of its own that finds its place on narrow screens."""
    drawn = "".join(
        f'<svg viewBox="-4 0 {WIDTH + 8} {_height(panel)}" class="fbr" role="img">{panel}</svg>'
        for panel in _panels(data)
    )
    return f'{STYLE}\n<div class="fbr-round" role="group" aria-label="{_title(data)}">{drawn}</div>\n'.replace(
        "\n\n", "\n"
    )


def _panels(data: dict[str, Any]) -> list[str]:
    return [plan_panel(data), run_panel(data), observe_panel(data)]


def _height(panel: str) -> int:
    """As far as its words go: below each other, panels leave no gap."""
    return max(int(y) for y in re.findall(r'<text x="[\d.]+" y="(\d+)"', panel)) + 12


def _title(data: dict[str, Any]) -> str:
    return escape(f"Round {data['round']} of a real run: plan, run, observe")


def _bar(row: dict[str, Any], y: float, scale: float) -> list[str]:
    """Seconds of a phone: the epochs in turns of two shades, with download before and upload after."""
    spans = [("rest", row["download_s"]), ("rest", row["forward_s"])]
    count = max(round(row["epochs"]), 1)
    spans += [(("main", "light")[number % 2], row["train_s"] / count) for number in range(count)]
    spans.append(("rest", row["upload_s"]))
    drawn, x = [], 0.0
    for kind, seconds in spans:
        drawn.append(f'<rect x="{x:.2f}" y="{y}" width="{seconds * scale:.2f}" height="14" class="{kind}"/>')
        x += seconds * scale
    return drawn


def _steps(steps: tuple[tuple[str, str], ...], top: float, apart: int = 21) -> list[str]:
    placed = [(top + 20 + apart * line, number, words) for line, (number, words) in enumerate(steps)]
    return [_text(0, y, number, "step") + _text(20, y, words) for y, number, words in placed]


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}"{f" class={kind!r}" if kind else ""}>{escape(words)}</text>'.replace("'", '"')


def _shade(chosen: bool) -> str:
    return "main" if chosen else "rest"


def main() -> None:
    """Read a run if one is named, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--round", type=int, default=58)
    given = parser.parse_args()
    if given.folder is not None:
        DATA.write_text(json.dumps(facts(given.folder, given.round), indent=1) + "\n")
    data = json.loads(DATA.read_text())
    WIDE.write_text(wide(data))
    PAGE.write_text(page(data))


if __name__ == "__main__":
    main()
