"""The space of a sweep: from words, from a file, and as names of methods."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbalancer.core.errors import BadSetting, FedBalancerError, UnknownName
from fedbalancer.experiments.sweep.space import Choice, Range, Space, parse_parameter


def test_words_are_choices_and_ranges() -> None:
    space = Space.make("fedbalancer", ["w=5,20", "lss=0.01..0.1", "clients.alpha=.1..10:log", "deadline=.5T,1T"])
    assert space.parameters == (
        Choice("w", (5, 20)), Range("lss", 0.01, 0.1), Range("clients.alpha", 0.1, 10, log=True),
        Choice("deadline", (".5T", "1T")),
    )  # fmt: skip
    assert not space.is_grid
    for each in space.parameters:  # they say themselves as they were said
        assert parse_parameter(each.key, str(each).partition("=")[2]) == each


def test_the_papers_grid() -> None:
    grid = Space.make("fedbalancer", ["paper"])
    assert len(grid.grid()) == 2 * 3 * 3 * 2
    assert grid.name(grid.grid()[0]) == "fedbalancer[w=5,lss=.01,dss=.05,p=.75]"
    assert len({grid.name(point) for point in grid.grid()}) == 36


def test_a_file_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text("[space]\nw = [5, 20]\nlss = '0.01..0.1'\nclients.alpha = {low = 0.1, high = 10.0, log = true}\n")
    assert Space.make("fedbalancer", [str(file)]) == Space.make(
        "fedbalancer", ["w=5,20", "lss=0.01..0.1", "clients.alpha=0.1..10.0:log"]
    )


def test_optimizers_and_schedules_are_swept_with_the_learning_rate() -> None:
    texts = ["learning_rate=0.001..0.1:log", "optimizer=sgd,adamw(weight_decay=0.01)", "schedule=off,cosine(rounds=9)"]
    space = Space.make("fedavg+1t", texts)
    assert space.parameters[1].ends == ("sgd", "adamw(weight_decay=0.01)")
    values = {"learning_rate": 0.01, "optimizer": "adamw(weight_decay=0.01)", "schedule": "cosine(rounds=9)"}
    name = "fedavg+1t[learning_rate=.01,schedule=cosine(rounds=9),optimizer=adamw(weight_decay=0.01)]"
    assert space.name(values) == name


def test_a_method_may_have_settings_already() -> None:
    space = Space.make("fedbalancer+qffl[p=.75]", ["w=5,20"])
    assert space.name({"w": 20}) == "fedbalancer+qffl[w=20,p=.75]"
    with pytest.raises(BadSetting, match="w is given twice"):
        Space.make("fedbalancer[w=3]", ["w=5,20"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a sweep needs a space"),
        (["papr"], "did you mean paper"),
        (["w=5,5"], "different values"),
        (["w=5,,6"], "different values"),
        (["w=9..5"], "the lower one first"),
        (["w=a..b"], "two numbers"),
        (["lss=0..1:log"], "numbers > 0"),
        (["w=5,20", "w=3"], "twice"),
        (["w=0,5"], "w = 0 must be a whole number >= 1"),
        (["p=0.1..1"], "p = 0.1 must be"),
        (["rounds=5,6"], "how methods are measured"),
        (["epoch=1,2"], "did you mean epochs"),
        (["no_such.toml"], "cannot read no_such.toml"),
    ],
)
def test_mistakes_are_told(words: list[str], message: str) -> None:
    with pytest.raises(FedBalancerError, match=message):
        Space.make("fedbalancer", words)


def test_a_file_with_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    for content, message in [("w = [", "not valid TOML"), ("", "must define settings"), ("w = 5", "must be a list"),
                             ("w = {low=1}", "must be a list"), ("w = []", "must be a list")]:  # fmt: skip
        file.write_text(content)
        with pytest.raises(BadSetting, match=message):
            Space.make("fedbalancer", [str(file)])


def test_an_unknown_space_lists_what_there_is() -> None:
    with pytest.raises(UnknownName, match=r"key=low\.\.high"):
        Space.make("fedbalancer", ["zzz"])
