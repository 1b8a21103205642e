"""Warnings instead of surprises: what is allowed, but will not do what its user thinks."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.experiments import spec as spec_module
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.run_warnings import missing_kernels, warnings_for_comparison, warnings_for_run
from fedbalancer.experiments.spec import RunSpec


def said(task: Any = None, **options: Any) -> list[str]:
    spec = RunSpec(task=task if task is not None else tinytask.load(), **options)
    return warnings_for_run(spec, spec.load_task())


def test_a_run_shorter_than_its_control_loop_names_the_setting() -> None:
    (sentence,) = said(method="fedbalancer", rounds=20)
    assert sentence.startswith("fedbalancer: 20 rounds are fewer than 2 w = 40")
    assert sentence.endswith("(w=2)")
    assert said(method="fedbalancer[w=10]", rounds=20) == []
    assert said(method="fedbalancer", rounds=40) == []
    assert said(method="fedavg+1t", rounds=3) == []
    assert said(method="fedbalancer", budget_s=100.0) == []  # nobody knows how many rounds that is


def test_prox_without_a_proximal_term_is_pointed_out() -> None:
    (sentence,) = said(method="prox+1t")
    assert "prox_mu is 0, so there is no proximal term" in sentence
    assert said(method="prox+1t", settings={"prox_mu": 0.1}) == []
    assert said(method="prox[deadline=.5T]") != []


def test_labels_with_gaps_between_them_are_pointed_out() -> None:
    tens = {"ann": [0, 10, 20], "bob": [20, 30, 0], "cyd": [30, 10]}
    (sentence,) = said(labelled(**tens), method="fedavg+1t")
    assert sentence.startswith("labels range from 0 to 30, but only 7 occur (0, 1, 2, 3, 10, ...); the model has")


def test_more_clients_a_round_than_there_are_is_said_where_somebody_asked_for_it() -> None:
    task = labelled(ann=[0, 1, 2], bob=[3, 2, 0])
    assert said(task, method="fedavg+1t") == [], "the usual ten"
    (sentence,) = said(replace(task, clients_per_round=60), method="fedavg+1t")
    assert sentence == "clients_per_round = 60: custom has 2 clients, so every round selects all of them"


def test_a_task_without_latencies_says_that_they_are_estimated_and_how_to_set_them() -> None:
    task = tinytask.load(latency=None)
    (sentence,) = said(task, method="fedavg+1t")
    assert sentence.startswith("tiny has no latency, so the time of a batch is estimated from the model's FLOPs")
    assert "(32 per sample): 0.01 times a batch of femnist" in sentence
    assert "(slow 16 ms, mid 5.9 ms, fast 1.8 ms)" in sentence
    assert "`fedbalancer list devices`" in sentence
    row = {"slow": (3.0, 1.0), "mid": (2.0, 1.0), "fast": (1.0, 0.1)}
    for latency in ("femnist", "har", "flops", row):
        assert said(tinytask.load(latency=latency), method="fedavg+1t") == []
    for name in ("femnist", "flops"):
        assert said(task, method="fedavg+1t", settings={"latency": name}) == []
    assert said("synthetic", method="fedavg+1t") == []
    plan = ComparisonPlan.make(RunSpec(task=task), ["fedavg+1t", "fedavg+2t"], 2)
    assert warnings_for_comparison(plan) == [sentence]


def test_a_run_that_begins_with_nobody_there_says_so(tmp_path: Path) -> None:
    task = tinytask.load()
    away, there = tmp_path / "away.json", tmp_path / "there.json"
    away.write_text(json.dumps({"one": [[50_000, 60_000]], "two": [[40_000, 60_000]]}))
    there.write_text(json.dumps({"one": [[0, 80_000]], "two": [[10, 86_000]]}))
    (sentence,) = said(task, method="fedavg+1t", settings={"availability": str(away)})
    assert sentence.startswith(f"0 of {len(task.sizes)} clients are available when seed 0 starts, fewer than")
    assert said(task, method="fedavg+1t", settings={"availability": str(there)}) == []
    plan = ComparisonPlan.make(RunSpec(task=task, settings={"availability": str(away)}), ["fedavg+1t"], [7])
    assert "when seed 7 starts" in warnings_for_comparison(plan)[0]


def test_a_comparison_says_it_once_for_all_its_methods() -> None:
    plan = ComparisonPlan.make(RunSpec(task=tinytask.load()), ["prox+1t", "prox+2t", "fedbalancer"], 2)
    short, bare = warnings_for_comparison(plan)
    assert short.startswith("fedbalancer: 6 rounds")
    assert bare.startswith("prox+1t, prox+2t: ")


def labelled(**clients: list[int]) -> fb.Task:
    parts = {name: (np.zeros((len(y), 2), np.float32), np.array(y)) for name, y in clients.items()}
    test = np.zeros((4, 2), np.float32), np.arange(4)
    return fb.Task(clients=parts, test=test, model=tinytask.linear, latency="har")


def test_a_label_of_one_client_alone_far_from_the_others_is_pointed_out() -> None:
    (sentence,) = said(labelled(ann=[0, 1, 2], bob=[3, 17, 0]), method="fedavg+1t")
    assert sentence.startswith("only client 'bob' has the label 17 (sample 1); all other labels are 0 to 3")
    assert said(labelled(ann=[0, 1, 5], bob=[3, 5, 0]), method="fedavg+1t") == []  # two have it
    assert said(labelled(ann=[0, 1, 2], bob=[3, 4]), method="fedavg+1t") == []  # a class like the others


def test_kernels_that_could_not_be_compiled_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"processor": "a chip", "conv": "conv-1.so", "dense": "torch (no C compiler: cc not found)"}
    monkeypatch.setattr(spec_module, "describe_environment", lambda backend: found)
    (sentence,) = missing_kernels(RunSpec(task=tinytask.load()))
    assert sentence.startswith("kernels not compiled, so torch is used for: dense (no C compiler: cc not found)")


def test_python_is_warned_and_nothing_else_changes() -> None:
    with pytest.warns(UserWarning, match="fewer than 2 w = 40"):
        fb.run(tinytask.load(), rounds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fb.run(tinytask.load(), "fedavg+1t", rounds=1)


def broken() -> Any:
    raise ZeroDivisionError("no layers")


def test_a_model_factory_that_raises_is_one_sentence() -> None:
    with pytest.raises(fb.FedBalancerError, match=r"the task's model broken\(\) raised ZeroDivisionError: no layers"):
        fb.run(tinytask.load(model=broken), "fedavg+1t", rounds=1)


@pytest.mark.parametrize("content", [[], {}, None, 3, "x", {"methods": [], "seeds": []}, {"methods": 5, "seeds": [0]}])
def test_a_comparison_file_without_contents_is_one_sentence(tmp_path: Path, content: object) -> None:
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    with pytest.raises(fb.FedBalancerError) as caught:
        ComparisonPlan.read(tmp_path)
    assert "\n" not in str(caught.value)
