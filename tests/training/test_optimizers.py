"""Local training as users of torch know it: optimizers, accumulated gradients, bfloat16, and short last batches."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import tinytask
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.client.work import batches
from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.types import ClientWork, TrainOptions

torch = pytest.importorskip("torch", reason="the torch trainer needs the extra [torch]")

from fedbalancer.training.optimizers import check_optimizer, find_optimizer, why_plain  # noqa: E402
from fedbalancer.training.trainer import TorchTrainer  # noqa: E402

SIZE = 44  # samples of the client c2


def work(size: int = SIZE, **options: Any) -> ClientWork:
    count = options.pop("batches", 7)
    training = TrainOptions(**{key: options.pop(key) for key in list(options) if key in TrainOptions.__annotations__})
    plain = {"batch_size": 10, "learning_rate": 0.1, "mu": 0.0, "clip_norm": None, "seed": 3, "training": training}
    return ClientWork("c2", np.arange(size), count, **{**plain, **options})


def by_torch(make: Any, job: ClientWork, weights: Any) -> Any:
    """Train the batches of a work in a loop of torch's own; return the new weights."""
    module, (x, y) = tinytask.linear(), tinytask.load().clients["c2"]
    torch.nn.utils.vector_to_parameters(torch.tensor(weights.copy()), module.parameters())
    optimizer = make(module.parameters(), lr=job.learning_rate)
    for _, rows in batches(job):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(torch.tensor(x[rows])), torch.tensor(y[rows])).backward()
        if job.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), job.clip_norm)
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adam, partial(torch.optim.AdamW, weight_decay=0.1), torch.optim.RMSprop, torch.optim.NAdam,
        partial(torch.optim.SGD, momentum=0.9, nesterov=True), torch.optim.Adagrad, torch.optim.Rprop,
    ],
)  # fmt: skip
def test_an_optimizer_of_a_task_trains_as_in_a_loop_of_torch(make: Any, clip_norm: float | None) -> None:
    task = tinytask.load(optimizer=make)
    trainer, job = TorchTrainer(task), work(optimizer=task.settings()["optimizer"], clip_norm=clip_norm)
    weights = trainer.initial_weights(0)
    update = trainer.train(weights, job).update
    np.testing.assert_allclose(weights + update, by_torch(make, job, weights), atol=1e-6)
    assert np.abs(update - trainer.train(weights, work(clip_norm=clip_norm)).update).max() > 1e-4


def test_a_function_of_the_user_makes_the_optimizer() -> None:
    made = []

    def own(parameters: Any, lr: float) -> Any:
        made.append(lr)
        return torch.optim.Adam(parameters, lr=lr, betas=(0.5, 0.9))

    trainer = TorchTrainer(tinytask.load(optimizer=own))
    weights = trainer.initial_weights(0)
    update = trainer.train(weights, work(optimizer="custom")).update
    named = trainer.train(weights, work(optimizer="adam(betas=(0.5, 0.9))")).update
    assert made == [0.1]
    assert update.tobytes() == named.tobytes()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, SIZE), st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_accumulated_batches_are_one_large_batch(
    size: int, batch_size: int, accumulate: int, epochs: int, adam: bool
) -> None:
    trainer, optimizer = TRAINER, "adam" if adam else "sgd"
    weights = trainer.initial_weights(0)
    large = batch_size * accumulate
    job = {"batch_size": large, "batches": epochs * -(-size // large), "optimizer": optimizer, "mu": 0.3}
    small = {"batch_size": batch_size, "batches": epochs * -(-size // batch_size), "accumulate": accumulate}
    expected = trainer.train(weights, work(size, **job, clip_norm=0.5))
    trained = trainer.train(weights, work(size, **{**job, **small}, clip_norm=0.5))
    np.testing.assert_allclose(trained.update, expected.update, atol=2e-5)
    np.testing.assert_array_equal(trained.seen, expected.seen)
    np.testing.assert_allclose(trained.losses, expected.losses, atol=2e-5)


TRAINER = TorchTrainer(tinytask.load(), "plain")


def test_a_training_that_ends_between_two_steps_takes_the_last_one() -> None:
    weights = TRAINER.initial_weights(0)
    whole = TRAINER.train(weights, work(batches=2, accumulate=2)).update
    three = TRAINER.train(weights, work(batches=3, accumulate=2)).update
    alone = TRAINER.train(weights, work(batches=1, accumulate=2)).update
    assert np.abs(three - whole).max() > 1e-3
    np.testing.assert_allclose(alone, TRAINER.train(weights, work(batches=1)).update, atol=1e-7)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, SIZE), st.integers(1, 20), st.integers(1, 3))
def test_drop_last_trains_whole_batches_only(size: int, batch_size: int, epochs: int) -> None:
    job = work(size, batch_size=batch_size, drop_last=True)
    job = work(size, batch_size=batch_size, drop_last=True, batches=epochs * job.per_epoch)
    sizes = [len(rows) for _, rows in batches(job)]
    assert sizes == [min(batch_size, size)] * (epochs * max(size // batch_size, 1))


def test_drop_last_records_the_losses_of_the_samples_that_were_trained() -> None:
    job = work(drop_last=True, batches=4)
    trained = TRAINER.train(TRAINER.initial_weights(0), job)
    assert trained.seen.tolist() == sorted(np.concatenate([rows for _, rows in batches(job)]))
    assert len(trained.seen) == len(trained.losses) == 40
    assert trained.steps is not None
    assert trained.steps.max() == 3


def test_bfloat16_is_close_to_float32_and_its_losses_are_float32() -> None:
    weights = TRAINER.initial_weights(0)
    exact, rough = (TRAINER.train(weights, work(dtype=dtype)) for dtype in ("float32", "bfloat16"))
    assert exact.update.tobytes() != rough.update.tobytes()
    np.testing.assert_allclose(rough.update, exact.update, atol=0.02)
    np.testing.assert_allclose(rough.losses, exact.losses, rtol=0.05)


def with_norm() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))


def test_batch_norms_can_be_forbidden() -> None:
    with pytest.raises(BadData, match=r"batch norm, 1 \(BatchNorm1d\), and batch_norm is 'forbid'"):
        fb.run(tinytask.load(model=with_norm, batch_norm="forbid"), "fedavg+1t", rounds=1)
    fb.run(tinytask.load(batch_norm="forbid"), "fedavg+1t", rounds=1)


def test_the_fast_backend_trains_sgd_only() -> None:
    assert why_plain(TrainOptions(drop_last=True, batch_norm="forbid"), "fast", "cpu") == ""
    assert why_plain(TrainOptions("sgd(momentum=0.9)"), "fast", "cpu") == ""
    for options, backend, device, words in (
        (TrainOptions("adamw"), "fast", "cpu", "optimizer adamw"),
        (TrainOptions("sgd(momentum=0.9)", accumulate=2), "fast", "cpu", "accumulate = 2"),
        (TrainOptions(accumulate=2), "fast", "cpu", "accumulate = 2"),
        (TrainOptions(dtype="bfloat16"), "fast", "cpu", "bfloat16"),
        (TrainOptions(), "plain", "cpu", "asks for the backend plain"),
        (TrainOptions(), "fast", "cuda", "no kernels for cuda"),
    ):
        assert words in why_plain(options, backend, device)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("adamw(weight_decay=-1)", "weight_decay"),
        ("sgd(momentun=0.9)", "momentun"),
        ("custom", "pass it as Task"),
        ("sgd(nesterov=True)", "Nesterov"),
    ],
)
def test_a_bad_optimizer_is_refused_before_anything_runs(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=words):
        check_optimizer(text, None)
    with pytest.raises(BadSetting, match=words):
        fb.run(tinytask.load(), "fedavg+1t", settings={"optimizer": text}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert find_optimizer("sgd", None) is None


OPTIONS: list[dict[str, Any]] = [
    {"optimizer": partial(torch.optim.AdamW, weight_decay=0.1), "schedule": fb.schedules.Cosine(rounds=3)},
    {"optimizer": tinytask.decaying, "learning_rate": lambda number: 0.1 / number, "drop_last": True},
    {"optimizer": {"name": "sgd", "momentum": 0.9}, "accumulate": 3, "dtype": "bfloat16", "clip_norm": 1.0},
]
KEPT = {"optimizer_state": "keep", "clients_per_round": 6}


@pytest.mark.parametrize("options", [OPTIONS[1], {**OPTIONS[2], **KEPT}], ids=["functions", "accumulated and kept"])
def test_runs_have_the_same_bytes_with_any_workers_and_after_a_resume(options: dict[str, Any], tmp_path: Path) -> None:
    task = tinytask.load(**options)
    fb.run(task, "fedbalancer", rounds=3, settings={"w": 1}, out=tmp_path / "inline")
    fb.run(task, "fedbalancer", rounds=3, settings={"w": 1}, out=tmp_path / "pool", executor="pool", workers=2)
    seen = iter([False, True, True])
    fb.run(
        task, "fedbalancer", rounds=3, settings={"w": 1, "checkpoint_s": 0}, out=tmp_path / "cut",
        stopped=lambda: next(seen),
    )  # fmt: skip
    fb.resume(tmp_path / "cut", task=task)
    for name in ("model.safetensors", "rounds.parquet", "evals.parquet"):
        expected = (tmp_path / "inline" / name).read_bytes()
        assert (tmp_path / "pool" / name).read_bytes() == expected
        assert (tmp_path / "cut" / name).read_bytes() == expected


def test_the_manifest_says_how_clients_are_trained_and_why(tmp_path: Path) -> None:
    def training(**options: Any) -> dict[str, Any]:
        out = tmp_path / "run"
        fb.run(tinytask.load(**options), "fedavg+1t", rounds=1, out=out, overwrite=True)
        return dict(json.loads((out / "manifest.json").read_text())["training"])

    plain = training()
    assert (plain["path"], plain["why"], plain["optimizer"], plain["schedule"]) == ("fast", "", "sgd", None)
    other = training(**OPTIONS[0])
    assert other["path"] == "plain"
    assert "adamw(weight_decay=0.1) runs on torch's own step" in other["why"]
    assert (other["optimizer"], other["schedule"]) == ("adamw(weight_decay=0.1)", "cosine(rounds=3)")
    own = training(**OPTIONS[1])
    assert (own["optimizer"], own["learning_rate"], own["drop_last"]) == ("custom", "function <lambda>", True)


def test_settings_and_brackets_replace_the_tasks_optimizer_and_rate() -> None:
    task = tinytask.load(optimizer=tinytask.decaying, learning_rate=lambda number: 0.1)
    changed = fb.run(
        task, "fedavg+1t", rounds=2, settings={"optimizer": torch.optim.SGD, "learning_rate": 0.05}
    ).weights  # fmt: skip
    plain = fb.run(tinytask.load(), "fedavg+1t", rounds=2).weights
    in_brackets = fb.run(task, "fedavg+1t[optimizer=sgd,learning_rate=.05]", rounds=2).weights
    assert changed.tobytes() == plain.tobytes() == in_brackets.tobytes()


def test_a_function_in_the_settings_of_a_run_is_refused() -> None:
    for key, value in (("learning_rate", lambda number: 0.1), ("optimizer", tinytask.decaying)):
        with pytest.raises(BadSetting, match=rf"only a task can have: Task\({key}="):
            fb.run(tinytask.load(), "fedavg+1t", rounds=1, settings={key: value})


def test_a_rate_that_a_function_cannot_give_names_the_round() -> None:
    with pytest.raises(BadSetting, match="in round 2"):
        fb.run(tinytask.load(learning_rate=lambda number: 0.1 if number == 1 else 0), "fedavg+1t", rounds=3)


def test_drop_last_shortens_the_rounds_of_the_clock() -> None:
    """A client with 44 samples trains four batches per epoch instead of five."""
    clients = {name: tinytask.samples(44, seed) for seed, name in enumerate("abc")}
    short, whole = (
        fb.run(tinytask.load(clients=clients, drop_last=drop_last), "fedavg+wfa", rounds=1).clients
        for drop_last in (True, False)
    )
    assert (short["train_s"] / whole["train_s"]).to_list() == pytest.approx([4 / 5] * 3)


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9), torch.optim.RMSprop, torch.optim.NAdam,
        torch.optim.Adafactor, torch.optim.Rprop, torch.optim.ASGD, torch.optim.RAdam, torch.optim.Adagrad,
    ],
)  # fmt: skip
def test_kept_state_continues_the_optimizer(make: Any) -> None:
    """Two trainings of one epoch with kept state are one training of the same batches by one optimizer."""
    trainer = TorchTrainer(tinytask.load(optimizer=make), "plain")
    weights = trainer.initial_weights(0)
    first = work(optimizer=trainer._task.settings()["optimizer"], optimizer_state="keep", batches=5)
    second = replace(first, seed=4)
    one = trainer.train(weights, first)
    two = trainer.train(weights + one.update, replace(second, state=one.state))
    reset = trainer.train(weights + one.update, second)
    module, (x, y) = tinytask.linear(), tinytask.load().clients["c2"]
    torch.nn.utils.vector_to_parameters(torch.tensor(weights.copy()), module.parameters())
    optimizer = make(module.parameters(), lr=0.1)
    for _, rows in (*batches(first), *batches(second)):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(torch.tensor(x[rows])), torch.tensor(y[rows])).backward()
        optimizer.step()
    expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_allclose(weights + one.update + two.update, expected, atol=2e-6)
    assert two.update.tobytes() != reset.update.tobytes()


def test_a_run_keeps_the_state_or_resets_it() -> None:
    task = tinytask.load(**OPTIONS[2], **KEPT)
    kept, reset = (
        fb.run(task, "fedbalancer", rounds=3, settings={"w": 1, "optimizer_state": what}) for what in ("keep", "reset")
    )
    assert kept.weights.tobytes() != reset.weights.tobytes()


def test_a_state_that_cannot_be_kept_is_named() -> None:
    class Odd(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["history"] = [1, 2]

    task = tinytask.load(optimizer=lambda parameters, lr: Odd(parameters, lr=lr), optimizer_state="keep")
    with pytest.raises(BadSetting, match="history of Odd is list; only tensors and numbers can be kept"):
        fb.run(task, "fedavg+1t", rounds=1)


def test_local_statistics_of_batch_norms_stay_on_the_clients() -> None:
    task = tinytask.load(model=with_norm, batch_norm="local", clients_per_round=4)
    with pytest.warns(UserWarning, match="batch norm statistics of the initial model"):
        local = fb.run(task, "fedavg+wfa", rounds=2)
    shared = fb.run(task, "fedavg+wfa", rounds=2, settings={"batch_norm": "average"})
    layout = TorchTrainer(task).layout
    (old, new), now = (TorchTrainer(task).initial_weights(0), local.weights), shared.weights
    for name, span in layout.spans.items():
        assert np.array_equal(old[span], new[span]) == name.endswith(("running_mean", "running_var"))
        assert not np.array_equal(old[span], now[span])
    assert local.rounds["up_bytes"][0] == shared.rounds["up_bytes"][0] * (len(old) - 6) / len(old)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fedavg+1t[part=LocalLayers(names='2.*')]", "batch_norm = 'local' needs the slot part"),
        ("fedavg+1t+median", "does not average"),
    ],
)
def test_local_statistics_that_a_method_cannot_have_are_refused(method: str, words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        fb.run(tinytask.load(model=with_norm, batch_norm="local"), method, rounds=1)


def test_local_statistics_need_a_batch_norm() -> None:
    with (
        pytest.raises(BadSetting, match="batch_norm = 'local': no tensor of the"),
        pytest.warns(UserWarning, match="local"),
    ):
        fb.run(tinytask.load(batch_norm="local"), "fedavg+1t", rounds=1)


@pytest.mark.filterwarnings("ignore:batch_norm = local")
@pytest.mark.parametrize("batch_norm", ["average", "local"])
def test_a_last_batch_of_one_sample_does_not_end_a_run(batch_norm: str) -> None:
    clients = {name: tinytask.samples(11, seed) for seed, name in enumerate("abc")}
    task = tinytask.load(model=with_norm, clients=clients, batch_norm=batch_norm, optimizer="adam", clients_per_round=3)
    assert fb.run(task, "fedavg+wfa", rounds=1).rounds["completed"].to_list() == [3]
