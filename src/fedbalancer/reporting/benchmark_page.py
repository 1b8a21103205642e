"""The page of the benchmark's results: Markdown with figures, and one HTML file with filters."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fedbalancer.core.files import write_text
from fedbalancer.reporting.benchmark import DEFAULT, TUNED, UNTUNED, WITH_GIFTS, Board, Entry, load_board
from fedbalancer.reporting.leaderboard import interval_text
from fedbalancer.reporting.page import read_asset
from fedbalancer.reporting.plotting import image_bytes, new_figure, style_axes, write_figure
from fedbalancer.reporting.ratio import Ratio
from fedbalancer.reporting.style import DASHES, accuracy_text, choose_looks, size_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE, TEXT, PROFILE, HEAT = "benchmark.html", "README.md", "profile", "heat"
MOST_FACTOR = 16.0
"""Largest factor on the axis of the performance profile."""
MOST_ROWS = 16
"""Methods in a column of its legend."""
OURS, UNTUNED_OURS = "canter", "canter+auto"
UNTUNED_SHARE = 0.95
"""Share of the target in the table of untuned methods by cell."""


def write_pages(folder: Path) -> Board:
    """Write README.md, benchmark.html and the figures of a folder of benchmark results.

    Args:
        folder: The folder.

    Returns:
        The scores.

    Raises:
        RunFolderError: If the folder has no results.
    """
    board = load_board(folder)
    share = board.targets[0]
    for suffix in ("svg", "png"):
        write_figure(plot_profile(board, share), folder / f"{PROFILE}.{suffix}")
        write_figure(plot_heat(board, share), folder / f"{HEAT}.{suffix}")
    write_text(folder / TEXT, markdown(board))
    write_text(folder / PAGE, page_html(board))
    return board


def plot_profile(board: Board, share: float) -> Figure:
    """Plot the performance profile of the tuned methods that ran in most cells: others were not compared on all.

    Args:
        board: The scores.
        share: Share of the target.
    """
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    profile = board.profile(share)
    taus = np.geomspace(1, MOST_FACTOR, 200)
    cells = _count_cells(board)
    looks = choose_looks([method for method in profile if cells[method] == max(cells.values())])
    for method, look in looks.items():
        factors = np.array(profile[method])
        shares = [(factors <= tau * (1 + 1e-9)).mean() for tau in taus]
        axes.plot(
            taus, shares, DASHES[look.dash], color=look.colour, lw=look.width, label=method, drawstyle="steps-post"
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.set_ylim(-0.02, 1.02)
    style_axes(
        axes, "factor of the fastest method's time", "share of runs within the factor", "Performance profile, tuned"
    )
    figure.legend(loc="outside right center", frameon=False, fontsize=8, ncols=1 + len(looks) // MOST_ROWS)
    return figure


def _count_cells(board: Board) -> dict[str, int]:
    """Return the number of cells of every method."""
    return {method: sum(board.find(cell, method) is not None for cell in board.cells) for method in board.methods}


def plot_heat(board: Board, share: float) -> Figure:
    """Plot the speed-up over the best tuned FedAvg: tuned methods by cells.

    Args:
        board: The scores.
        share: Share of the target.
    """
    figure = new_figure(2.6 + 0.9 * len(board.cells), 1.2 + 0.32 * len(board.methods))
    axes = figure.subplots()
    entries = [[board.find(cell, method) for cell in board.cells] for method in board.methods]
    ratios = [[None if entry is None else entry.over[share] for entry in line] for line in entries]
    values = [[math.nan if r is None or r.mean is None else math.log2(r.mean) for r in line] for line in ratios]
    axes.imshow(np.array(values, dtype=np.float64), cmap="RdBu", vmin=-2.5, vmax=2.5, aspect="auto")
    axes.set_xticks(range(len(board.cells)), board.cells, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(board.methods)), board.methods, fontsize=8)
    for row, line in enumerate(ratios):
        for column, ratio in enumerate(line):
            text = "" if ratio is None or ratio.mean is None else f"{ratio.bound}{ratio.mean:.2f}"
            dark = bool(text) and abs(values[row][column]) > 1.5
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    figure.suptitle("Speed-up over the best tuned FedAvg", x=0.02, ha="left", fontsize=10, fontweight="bold")
    return figure


def ratio_text(ratio: Ratio) -> str:
    """Format a ratio with its interval and a sign: ▲ faster, ▼ slower, ○ not resolved.

    >>> ratio_text(Ratio(2.0, None, 1.5, 2.5)), ratio_text(Ratio(None))
    ('2.00 (1.50 to 2.50) ▲', '–')
    """
    if ratio.mean is None:
        return "–"
    interval = interval_text(ratio.low, ratio.high, 2)
    sign = {"faster": "▲", "slower": "▼", "": "○"}[ratio.resolved]
    return f"{f'{ratio.bound} ' if ratio.bound else ''}{ratio.mean:.2f}{f' ({interval})' if interval else ''} {sign}"


def markdown(board: Board) -> str:
    """Return the page as Markdown.

    Args:
        board: The scores.
    """
    parts = [f"# The time-to-accuracy benchmark: suite `{board.protocol['suite']}`", *_introduction(board)]
    parts += [
        "## Which method on which fleet",
        _answer(board),
        f"![Performance profile]({PROFILE}.svg)",
        _profile(board),
    ]
    parts += ["## All cells", f"![Speed-up over the best tuned FedAvg]({HEAT}.svg)", _overall(board)]
    for cell in board.protocol["cells"]:
        if cell["name"] in board.cells:
            parts += [f"### {cell['name']}: {cell['title']}", _cell_table(board, cell["name"])]
    parts += [
        *_untuned(board),
        "## Parts of canter in other methods",
        *_gifts(board),
        "## Tuned settings",
        _settings(board),
        *_limits(board),
        *_commands(board),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(board: Board) -> list[str]:
    protocol, seeds, cells = board.protocol, sorted(board.runs["seed"].unique().to_list()), board.protocol["cells"]
    missing = [cell["name"] for cell in cells if cell["name"] not in board.cells]
    left = f" Without results yet: {', '.join(f'`{name}`' for name in missing)}." if missing else ""
    return [
        "Every method gets the same number of trials over its own declared search space, the paper's default first. "
        "The best trial is frozen and scored on seeds that no trial used. The target of a seed is the final accuracy "
        "of the best tuned FedAvg of four variants; a speed-up is the ratio of the times to the target on the same "
        "seed, geometric mean with 95% interval. ▲ the interval is above 1, ▼ below 1, ○ not resolved; < and > are "
        "bounds, as some runs never reached the target.",
        f"These results: {protocol['trials']} trials per method on {len(protocol['tuning_seeds'])} tuning seeds, "
        f"scored on up to {len(seeds)} seeds ({seeds[0]} to {seeds[-1]}), {len(board.cells)} of {len(cells)} "
        f"cells.{left} Processor: {', '.join(_known(board, 'processor'))}. `{PAGE}` beside this page "
        "has the same numbers with filters; data: `runs.parquet` (a row per run with its curve, its costs and the "
        "checksums of its files), `trials.parquet`, `protocol.json`. See also [how results are "
        "measured](../../explanation/measuring.md).",
    ]


def _known(board: Board, column: str) -> list[str]:
    return sorted({str(value) for value in board.runs[column].to_list() if value})


def _answer(board: Board) -> str:
    """One line per cell: the fastest of tuned peer and ours, and our methods against the peer."""
    share = board.targets[0]
    columns = [(method, column) for method in (OURS, UNTUNED_OURS) for column in (TUNED, DEFAULT, UNTUNED)]
    shown = [each for each in columns if any(board.find(cell, *each) is not None for cell in board.cells)]
    # An untuned method has its default settings, and may have them in more cells.
    shown = [each for each in shown if each[1] != DEFAULT or (each[0], UNTUNED) not in shown]
    heads = [f"{column} `{method}` over it" for method, column in shown]
    lines = [f"| {' | '.join(['cell', 'fastest tuned method', 'best tuned peer', *heads])} |",
             f"|:--|:--|:--|{'--:|' * len(heads)}"]  # fmt: skip
    for cell in board.cells:
        peer = board.best_peer(cell, share)
        if peer is None:
            continue
        entries = [board.find(cell, *each) for each in shown]
        ratios = [board.ratio(entry, peer, share) if entry is not None else Ratio(None) for entry in entries]
        ours = ratios[shown.index((OURS, TUNED))] if (OURS, TUNED) in shown else Ratio(None)
        fastest = f"`{OURS}`" if ours.mean is not None and ours.mean > 1 and ours.bound != "<" else f"`{peer.label}`"
        unresolved = "" if ours.resolved else " (not resolved)"
        lines.append(f"| {cell} | {fastest}{unresolved} | `{peer.label}` | {' | '.join(map(ratio_text, ratios))} |")
    heads = [f"{each:.0%} of the target" for each in board.targets]
    lines += ["", "Our methods over the best tuned peer of each cell, all their cells. The peer is chosen on the same "
              "seeds, which favours it. –: on some seed, neither of the two reached the target.",
              "", f"| {' | '.join(['method', 'settings', 'cells', *heads])} |",
              f"|:--|:--|--:|{'--:|' * len(heads)}"]  # fmt: skip
    for method, column in shown:
        ratios = [board.overall(method, column, each, "best")[0] for each in board.targets]
        cells = board.overall(method, column, share, "best")[1]
        lines.append(f"| `{method}` | {column} | {cells} | {' | '.join(map(ratio_text, ratios))} |")
    return "\n".join(lines)


def _profile(board: Board) -> str:
    profile = board.profile(board.targets[0])
    lines = ["| tuned method | cells | fastest | within 1.5 | within 2 | within 4 | never reached |",
             "|:--|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    count = _count_cells(board)
    for method in sorted(profile, key=lambda name: (-count[name], -_within(profile[name], 2))):
        factors, cells = profile[method], count[method]
        shares = [f"{_within(factors, tau):.0%}" for tau in (1, 1.5, 2, 4)]
        never = f"{np.mean([math.isinf(factor) for factor in factors]):.0%}"
        lines.append(f"| `{method}` | {cells} | {' | '.join(shares)} | {never} |")
    lines += ["", "Share of runs (cell and seed) whose time to the target is within a factor of the fastest method's "
              "(Dolan and Moré). The figure has the methods with most cells; only these can be compared."]  # fmt: skip
    return "\n".join(lines)


def _within(factors: Sequence[float], tau: float) -> float:
    return float(np.mean(np.array(factors) <= tau * (1 + 1e-9)))


def _overall(board: Board) -> str:
    header = [f"{share:.0%}" for share in board.targets]
    lines = [
        "Speed-up over the best tuned FedAvg, geometric mean over the cells of a method.",
        "",
        f"| method | settings | cells | {' | '.join(header)} |",
        "|:--|:--|--:|" + "--:|" * len(header),
    ]
    for method in board.methods:
        for column in (DEFAULT, TUNED):
            ratios = [board.overall(method, column, share) for share in board.targets]
            texts = " | ".join(ratio_text(ratio) for ratio, _ in ratios)
            lines.append(f"| `{method}` | {column} | {ratios[0][1]} | {texts} |")
    return "\n".join(lines)


def _cell_table(board: Board, cell: str) -> str:
    header = [f"{share:.0%}" for share in board.targets]
    lines = [
        f"| method | settings | {' | '.join(header)} | reached | accuracy | worst decile | device hours | traffic |",
        "|:--|:--|" + "--:|" * (len(header) + 5),
    ]
    for method in board.methods:
        lines += [_line(board, entry) for column in (DEFAULT, TUNED) if (entry := board.find(cell, method, column))]
    return "\n".join(lines)


def _line(board: Board, entry: Entry) -> str:
    return f"| {' | '.join([f'`{entry.label}`', entry.column, *values(board, entry)])} |"


def values(board: Board, entry: Entry) -> list[str]:
    """Return the texts of an entry: speed-ups, reached, accuracy, worst decile, device hours and traffic.

    Args:
        board: The scores.
        entry: The entry.
    """
    share = board.targets[0]
    seconds, everyone = entry.cost(share, "device_s")
    traffic, _ = entry.cost(share, "down_bytes", "up_bytes")
    sign = "" if everyone else "≥ "
    return [
        *(ratio_text(entry.over[each]) for each in board.targets),
        f"{entry.reached(share)} of {len(entry.rows)}",
        accuracy_text(entry.accuracy.mean),
        accuracy_text(entry.worst_decile.mean),
        "–" if seconds is None else f"{sign}{seconds / 3600:.2f}",
        "–" if traffic is None else f"{sign}{size_text(traffic)}",
    ]


def _untuned(board: Board) -> list[str]:
    """Return the section of the methods that were scored without tuning; empty if there are none."""
    entries = [entry for entry in board.entries if entry.column == UNTUNED]
    if not entries:
        return []
    text = (
        "These methods were scored with the settings in their names and without trials, for example parts of a method; "
        "methods with the same base are listed with their defaults, on the same cells, for comparison."
    )
    return ["## Not tuned", text, _untuned_overall(board, entries), _untuned_cells(board, entries)]


def _untuned_overall(board: Board, entries: Sequence[Entry]) -> str:
    lines = [
        "Speed-up over the best tuned FedAvg, geometric mean over the cells of a method.",
        "",
        f"| method | cells | {' | '.join(f'{share:.0%}' for share in board.targets)} | mean accuracy |",
        "|:--|--:|" + "--:|" * (len(board.targets) + 1),
    ]
    for base in sorted({_base(entry.label) for entry in entries}):
        mine = [entry for entry in entries if _base(entry.label) == base]
        cells = [cell for cell in board.cells if any(entry.cell == cell for entry in mine)]
        defaults = [(method, DEFAULT) for method in board.methods if _base(method) == base]
        names = [(label, UNTUNED) for label in sorted({entry.label for entry in mine})]
        lines += [line for each in defaults + names if (line := _untuned_line(board, *each, cells))]
    return "\n".join(lines)


def _base(label: str) -> str:
    """Return the base of a method's label, without modifiers, settings and owner."""
    return re.split(r"[-+[ ]", label, maxsplit=1)[0]


def _untuned_line(board: Board, method: str, column: str, cells: Sequence[str]) -> str:
    """Return a method's row over some cells; "" if it has no runs there."""
    found = [entry for cell in cells if (entry := board.find(cell, method, column)) is not None]
    if not found:
        return ""
    ratios = [ratio_text(board.overall(method, column, share, within=cells)[0]) for share in board.targets]
    means = [entry.accuracy.mean for entry in found if entry.accuracy.mean is not None]
    accuracy = accuracy_text(float(np.mean(means)) if means else None)
    name = f"`{method}`{' default' if column == DEFAULT else ''}"
    return f"| {name} | {len(found)} | {' | '.join(ratios)} | {accuracy} |"


def _untuned_cells(board: Board, entries: Sequence[Entry]) -> str:
    share = min(board.targets, key=lambda each: abs(each - UNTUNED_SHARE))
    cells = [cell for cell in board.cells if any(entry.cell == cell for entry in entries)]
    lines = [
        f"Speed-up over the best tuned FedAvg at {share:.0%} of the target, by cell.",
        "",
        f"| method | {' | '.join(cells)} |",
        "|:--|" + "--:|" * len(cells),
    ]
    for label in sorted({entry.label for entry in entries}, key=lambda each: (_base(each), each)):
        found = [board.find(cell, label, UNTUNED) for cell in cells]
        texts = ["–" if entry is None else ratio_text(entry.over[share]) for entry in found]
        lines.append(f"| `{label}` | {' | '.join(texts)} |")
    return "\n".join(lines)


def _gifts(board: Board) -> list[str]:
    """Return the table that separates what is canter's own from what any method could have."""
    share = board.targets[0]
    gifted = [entry for entry in board.entries if entry.column == WITH_GIFTS]
    text = (
        "Work in batches, a deadline of useful work, extrapolated server momentum and an averaged model can be added "
        "to other methods. This table has every method that can carry them, with its defaults, against `canter` with "
        "its defaults: what remains above 1 is the selection of clients and samples."
    )
    if not gifted:
        return [text, "Not run yet (`--gifts`)."]
    lines = ["| cell | method with these parts | over the best tuned FedAvg | `canter` over it | accuracy (`canter`) |",
             "|:--|:--|--:|--:|--:|"]  # fmt: skip
    for entry in gifted:
        ours = board.find(entry.cell, OURS, DEFAULT)
        ratio = board.ratio(ours, entry, share) if ours is not None else Ratio(None)
        base = entry.name.partition("+")[0].partition("[")[0]
        accuracies = f"{accuracy_text(entry.accuracy.mean)} ({accuracy_text(ours.accuracy.mean if ours else None)})"
        lines.append(
            f"| {entry.cell} | `{base}` | {ratio_text(entry.over[share])} | {ratio_text(ratio)} | {accuracies} |"
        )
    return [text, "\n".join(lines)]


def _settings(board: Board) -> str:
    lines = ["The best trial of every method; a name without brackets is the default.", "", "| cell | best trials |",
             "|:--|:--|"]  # fmt: skip
    for cell in board.cells:
        names = [entry.name for method in board.methods if (entry := board.find(cell, method)) is not None]
        lines.append(f"| {cell} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines)


def _limits(board: Board) -> list[str]:
    protocol, tuning = board.protocol, len(board.protocol["tuning_seeds"])
    return [
        "## What this shows, and what it does not",
        "- Small tasks on simulated phones, with stand-in data where the official data are not on the computer "
        f"(`variant` in `runs.parquet`: {', '.join(_known(board, 'variant'))}). A cell has 20 to 300 rounds of FedAvg; "
        "the order of methods at the papers' scale may differ.\n"
        f"- {protocol['trials']} trials per method are few for a space of three to five dimensions, and "
        f"tuning on {tuning} seed{'s' * (tuning > 1)} is noisy: a tuned method can be slower than its "
        "default on fresh seeds. All methods have the same handicap.\n"
        "- The search spaces were declared by this project, not by the authors of the methods.\n"
        "- `canter` was designed by this project on seeds 0 to 4 of the tasks at `small`. The seeds here are fresh and "
        "the scenarios have other lengths, but `har` and `femnist` are not new data to it.\n"
        "- The pages of the [methods](../../methods/README.md) list the differences from the papers.",
    ]


def _commands(board: Board) -> list[str]:
    protocol = board.protocol
    options = (
        f"--suite {protocol['suite']} --trials {protocol['trials']} --tuning-seeds {len(protocol['tuning_seeds'])} "
        f"--seeds {len(protocol['seeds'])}"
    )
    run, place = f"fedbalancer benchmark run {options}", "--results docs/results/benchmark"
    names = shlex.quote(",".join(protocol.get("untuned", ())))
    lines = [
        f"{run} {place}   # runs all of it, and continues",
        f"{run} --gifts {place}",
        *([f"{run} --methods fedavg+1t --untuned {names} {place}"] if protocol.get("untuned") else []),
        "fedbalancer benchmark show                               # this page again, and the tables in the terminal",
        "fedbalancer benchmark verify --sample 3                  # executes three runs again and compares their bytes",
    ]
    return ["## Commands", "    " + "\n    ".join(lines)]


def page_html(board: Board) -> str:
    """Return the page as one HTML file that loads nothing else, with filters.

    Args:
        board: The scores.
    """
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    share = board.targets[0]
    rows = [(entry, values(board, entry)) for entry in board.entries]
    choices = {
        "cell": list(board.cells),
        "method": list(dict.fromkeys(entry.label for entry in board.entries if entry.column != WITH_GIFTS)),
        "settings": [DEFAULT, TUNED, WITH_GIFTS, *([UNTUNED] if board.protocol.get("untuned") else [])],
    }
    return environment.from_string(read_asset("benchmark.html")).render(
        suite=board.protocol["suite"], rows=rows, choices=choices, titles=_titles(board),
        introduction=_introduction(board)[0], header=[f"{each:.0%}" for each in board.targets],
        css=Markup(read_asset("leaderboard.css")),
        figures=[Markup(_svg(plot(board, share))) for plot in (plot_profile, plot_heat)],
    )  # fmt: skip


def _titles(board: Board) -> dict[str, str]:
    return {cell["name"]: cell["title"] for cell in board.protocol["cells"]}


def _svg(figure: Figure) -> str:
    text = image_bytes(figure, "svg").decode()
    return text[text.index("<svg") :]


def terminal_rows(board: Board) -> Iterable[list[str]]:
    """Yield the rows of the table in the terminal: cell, method, column, speed-up, reached and accuracy.

    Args:
        board: The scores.
    """
    for entry in board.entries:
        texts = values(board, entry)
        count = len(board.targets)
        name = entry.label if entry.column != WITH_GIFTS else entry.name
        yield [entry.cell, name, entry.column, texts[0], texts[count], texts[count + 1], texts[count + 2]]
