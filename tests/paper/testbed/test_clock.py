"""The clock of a bed: it runs with the wall, stands while somebody works, and never passes a promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbalancer.paper.testbed.clock import BedClock, WakeupPipe, make_pipes, wake

SPEED = 4.0


class Wall:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def started(folder: Path, wall: Wall, real_time: bool = False) -> BedClock:
    clock = BedClock(folder / "clock", SPEED, real_time, wall)
    clock.start()
    return clock


def test_it_runs_with_the_wall_and_stands_while_held(tmp_path: Path) -> None:
    wall = Wall()
    clock = started(tmp_path, wall)
    wall.now += 2.0
    assert clock.now_s() == pytest.approx(8.0)
    clock.hold("a", "b")
    wall.now += 5.0
    clock.keep(["b"])
    assert clock.now_s() == pytest.approx(8.0)
    clock.keep([])
    wall.now += 1.0
    assert clock.now_s() == pytest.approx(12.0)
    assert clock.stood_s() == pytest.approx(5.0)


def test_it_waits_at_a_promise_until_that_is_kept(tmp_path: Path) -> None:
    wall = Wall()
    clock, other = started(tmp_path, wall), BedClock(tmp_path / "clock", SPEED, False, wall)
    other.promise("phone", 10.0)
    wall.now += 100.0
    assert clock.now_s() == 10.0
    other.hold("phone")
    wall.now += 100.0
    assert clock.now_s() == 10.0
    clock.keep([])
    wall.now += 1.0
    assert clock.now_s() == pytest.approx(14.0)


def test_a_promise_of_the_past_does_not_turn_it_back(tmp_path: Path) -> None:
    wall = Wall()
    clock = started(tmp_path, wall)
    wall.now += 10.0
    clock.promise("late", 5.0)
    assert clock.now_s() == pytest.approx(40.0)


def test_in_real_time_nobody_holds_it(tmp_path: Path) -> None:
    wall = Wall()
    clock = started(tmp_path, wall, real_time=True)
    clock.hold("a")
    clock.promise("b", 1.0)
    wall.now += 3.0
    assert clock.now_s() == pytest.approx(12.0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["hold", "promise", "keep"]), st.sampled_from("abc"), st.floats(0, 50), st.floats(0, 5)),
    max_size=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(STEPS)
def test_it_never_runs_back_nor_faster_than_its_speed(
    tmp_path: Path, steps: list[tuple[str, str, float, float]]
) -> None:
    wall = Wall()
    clock = started(tmp_path, wall)
    for what, name, due_s, passed_s in steps:
        before_s = clock.now_s()
        if what == "hold":
            clock.hold(name)
        elif what == "promise":
            clock.promise(name, due_s)
        else:
            clock.keep([name])
        wall.now += passed_s
        assert before_s - 1e-9 <= clock.now_s() <= before_s + passed_s * SPEED + 1e-9
        assert what != "promise" or clock.now_s() <= max(due_s, before_s) + 1e-9


def test_who_waits_is_back_at_the_time_or_when_something_happens(tmp_path: Path) -> None:
    wall = Wall()
    clock = started(tmp_path, wall)
    naps: list[float] = []

    def nap(seconds: float) -> bool:
        naps.append(seconds)
        wall.now += seconds
        return len(naps) == 100

    clock.wait(2.0, nap)
    assert clock.now_s() == pytest.approx(2.0)
    clock.hold("somebody")
    clock.wait(3.0, nap)
    assert len(naps) == 100
    clock.wait(3.0, lambda _: False, most_s=0.0)


def test_a_bell_is_heard_once_also_when_it_rang_before(tmp_path: Path) -> None:
    make_pipes(tmp_path / "pipes", ("door",))
    wake(tmp_path / "pipes" / "door")  # nobody there yet: nothing happens
    bell = WakeupPipe(tmp_path / "pipes" / "door")
    assert not bell.wait(0.0)
    wake(tmp_path / "pipes" / "door")
    wake(tmp_path / "pipes" / "door")
    assert bell.wait(0.0)
    assert not bell.wait(0.0)
    wake(tmp_path / "pipes" / "none")
