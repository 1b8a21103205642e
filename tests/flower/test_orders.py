"""What the server tells a client arrives as it was, and nothing else is obeyed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from builders import make_order

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import ConfigRecord

from fedbalancer import method
from fedbalancer.errors import BadSetting
from fedbalancer.flower.orders import Instruction
from fedbalancer.settings import resolve

TOLD = Instruction(
    "ann", make_order(seed=2**62, sample_cap=7), 12.5, 0.1, None, 3, 0.25, "run", "fedbalancer", '{"p": 0.75}', False
)


@pytest.mark.parametrize("told", [TOLD, replace(TOLD, order=make_order(deadline_s=math.inf), budget_s=math.inf)])
def test_an_instruction_arrives_as_it_was(told: Instruction) -> None:
    assert Instruction.read(told.record()) == told


def test_the_client_makes_the_very_method_of_the_server() -> None:
    assert TOLD.build_method() == method("fedbalancer", resolve({"p": 0.75}))


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"round": 0}, {"round": "1"}, {"epochs": -1}, {"deadline-s": math.nan},
     {"learning-rate": math.inf}, {"client": "x" * 201}, {"settings": 5}],
)  # fmt: skip
def test_an_instruction_that_makes_no_sense_is_refused(change: dict[str, float | str]) -> None:
    with pytest.raises(BadSetting):
        Instruction.read(ConfigRecord({**dict(TOLD.record()), **change}))


def test_a_server_cannot_name_code_to_load() -> None:
    with pytest.raises(BadSetting, match="method="):
        replace(TOLD, settings='{"slots": {"samples": "os:system"}}').build_method()
