"""The server's messages arrive unchanged, and clients follow no others."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from builders import make_order

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import ConfigRecord

from fedbalancer import method
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.settings import resolve
from fedbalancer.core.types import TrainOptions
from fedbalancer.flower.messages import Instruction

CLIENT = method("fedbalancer", resolve({"p": 0.75})).client
TOLD = Instruction(
    "ann", make_order(seed=2**62, sample_cap=7, learning_rate=0.1), 12.5, 3, 0.25, "run", "fedbalancer",
    CLIENT.to_json() or "",
)  # fmt: skip


OPTIONS = TrainOptions("adam(betas=(0.8, 0.9))", 4, "bfloat16", True, "local", "keep")


@pytest.mark.parametrize(
    "told",
    [
        TOLD, replace(TOLD, order=make_order(deadline_s=math.inf), budget_s=math.inf),
        replace(TOLD, order=make_order(training=OPTIONS)),
    ],
)  # fmt: skip
def test_an_instruction_arrives_as_it_was(told: Instruction) -> None:
    assert Instruction.read(told.record()) == told


def test_the_client_runs_what_the_server_says() -> None:
    assert TOLD.client_policies() == CLIENT


@pytest.mark.parametrize(
    "change",
    [{"version": 1}, {"round": 0}, {"round": "1"}, {"epochs": -1}, {"deadline-s": math.nan},
     {"learning-rate": math.inf}, {"client": "x" * 201}, {"policies": 5},
     {"accumulate": 0}, {"dtype": "float8"}, {"optimizer": "lbfgs"}, {"batch-norm": "both"},
     {"optimizer-state": "lose"}],
)  # fmt: skip
def test_an_instruction_that_makes_no_sense_is_refused(change: dict[str, float | str]) -> None:
    with pytest.raises(BadSetting):
        Instruction.read(ConfigRecord({**dict(TOLD.record()), **change}))


@pytest.mark.parametrize("text", ["os:system", "builtins.eval", "Optimizer"])
def test_a_server_can_name_optimizers_of_torch_only(text: str) -> None:
    with pytest.raises(UnknownName, match="unknown optimizer"):
        Instruction.read(ConfigRecord({**dict(TOLD.record()), "optimizer": text}))


@pytest.mark.parametrize("policy", ["os:system", "system", "Uniform", "builtins.eval"])
def test_a_server_cannot_name_code_to_load(policy: str) -> None:
    told = {**json.loads(TOLD.policies), "samples": {"policy": policy}}
    with pytest.raises(BadSetting, match="this client does not have"):
        replace(TOLD, policies=json.dumps(told)).client_policies()


def test_a_client_of_a_server_with_client_policies_of_its_own_needs_them_too() -> None:
    with pytest.raises(BadSetting, match="method="):
        replace(TOLD, policies="").client_policies()


def test_a_client_imports_no_server_policy() -> None:
    """A device needs neither the server's policies nor the settings of a run."""
    script = (
        "import sys, fedbalancer.flower.client_apps, fedbalancer.flower.client\n"
        "above = ('server', 'methods', 'core.settings', 'store', 'reporting', 'simulation', 'experiments')\n"
        "print([name for name in sys.modules if name.startswith(tuple('fedbalancer.' + one for one in above))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
