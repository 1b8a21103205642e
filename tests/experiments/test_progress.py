"""Where all runs together stand, and what is left."""

from __future__ import annotations

import pytest

from fedbalancer.experiments.progress import JobEvent, Progress, comparison_display, run_display, runs_display


def at(share: float) -> Progress:
    return Progress(round=3, clock_s=70.0, value=0.5, share=share)


def test_the_lines_tell_of_every_run_and_of_all_together(capsys: pytest.CaptureFixture[str]) -> None:
    with comparison_display(["fedavg+1t", "fedbalancer[w=5]"], [0, 1]) as listen:
        listen(JobEvent(("fedavg+1t", 0), "running", at(0.5)))
        listen(JobEvent(("fedavg+1t", 0), "done"))
        listen(JobEvent(("fedbalancer[w=5]", 1), "failed", why="no [such] model"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("fedavg+1t seed 0: 50%, round 3, clock 70 s, accuracy 0.500")
    assert "all runs: 12%" in lines[0]
    assert lines[1].startswith("fedavg+1t seed 0: done (all runs: 25%")
    assert lines[2].startswith("fedbalancer[w=5] seed 1: failed: no [such] model (all runs: 50%")


def test_runs_that_were_done_before_count_and_are_not_told_again(capsys: pytest.CaptureFixture[str]) -> None:
    with runs_display({("a", 0): "first", ("b", 0): "second"}) as listen:
        listen(JobEvent(("a", 0), "found"))
        listen(JobEvent(("b", 0), "done"))
    assert capsys.readouterr().err.splitlines()[0].startswith("second: done (all runs: 100%")


def test_a_run_that_goes_on_for_longer_is_not_done_any_more(capsys: pytest.CaptureFixture[str]) -> None:
    with comparison_display(["a", "b"], [0]) as listen:
        listen(JobEvent(("a", 0), "done"))
        listen(JobEvent(("a", 0), "running", at(0.5)))
        listen(JobEvent(("b", 0), "done"))
    assert "all runs: 75%" in capsys.readouterr().err.splitlines()[-1]


def test_runs_that_are_yet_to_go_on_are_not_done_either(capsys: pytest.CaptureFixture[str]) -> None:
    with comparison_display(["a", "b"], [0]) as listen:
        for method in ("a", "b"):
            listen(JobEvent((method, 0), "done"))
        for method in ("a", "b"):
            listen(JobEvent((method, 0), "further", at(0.5)))
        listen(JobEvent(("a", 0), "done"))
    lines = capsys.readouterr().err.splitlines()
    assert "all runs: 100%" in lines[1]
    assert len(lines) == 3
    assert "all runs: 75%" in lines[2]


def test_a_single_run_has_no_total(capsys: pytest.CaptureFixture[str]) -> None:
    with run_display("mine") as tell:
        tell(at(1.0))
    assert "all runs" not in capsys.readouterr().err
