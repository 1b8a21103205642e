"""Any input and any output: every form of samples trains as its plain form does, alone, in workers and on Flower."""

from __future__ import annotations

import json
import sys
import warnings
from collections import namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadData
from fedbalancer.core.samples import Ragged
from fedbalancer.core.types import ClientWork
from fedbalancer.data.catalogue.summary import count_labels, describe_task
from fedbalancer.training.flops import count_flops
from fedbalancer.training.model_file import check_file_samples
from fedbalancer.training.tensors import find_logits, to_device, to_float32
from fedbalancer.training.trainer import TorchTrainer

torch = pytest.importorskip("torch", reason="models need the extra [torch]")
nn = torch.nn
Net: Any = nn.Module


def sentences(seed: int, count: int = 12) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1, 9, rng.integers(1, 6)) for _ in range(count)]
    return rows, np.array([row[0] % 3 for row in rows])


class Words(Net):  # type: ignore[misc]
    """Mean embedding of the words that a mask marks."""

    def __init__(self, outputs: str = "tensor") -> None:
        super().__init__()
        self.table, self.last, self.outputs = nn.Embedding(9, 6), nn.Linear(6, 3), outputs

    def forward(self, ids: Any, mask: Any) -> Any:
        weights = mask.float()[..., None]
        scores = self.last((self.table(ids) * weights).sum(1) / weights.sum(1))
        kinds = {
            "object": SimpleNamespace(logits=scores, hidden=ids),
            "dictionary": {"hidden": ids, "logits": scores},
            "tuple": (scores, ids),
        }
        return kinds.get(self.outputs, scores)


def ragged(seed: int) -> Any:
    rows, labels = sentences(seed)
    return {"ids": Ragged(rows, mask="mask")}, labels


def two_ragged(seed: int) -> Any:
    rows, labels = sentences(seed)
    return {"ids": [row.tolist() for row in rows], "mask": [[1] * len(row) for row in rows]}, labels.tolist()


def padded(seed: int) -> Any:
    rows, labels = sentences(seed)
    ids = np.zeros((len(rows), 5), np.int32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return {"ids": ids, "mask": ids > 0}, labels


def in_order(seed: int) -> Any:
    features, labels = padded(seed)
    return (torch.tensor(features["ids"]), torch.tensor(features["mask"])), torch.tensor(labels)


def items(seed: int) -> Any:
    rows, labels = sentences(seed)
    return [{"ids": row, "mask": np.ones(len(row)), "labels": y} for row, y in zip(rows, labels, strict=True)]


class Listed(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
    def __init__(self, seed: int) -> None:
        self.items = items(seed)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]


FORMS = {"ragged": ragged, "lists": two_ragged, "padded": padded, "in order": in_order, "data set": Listed}
OPTIONS: dict[str, Any] = {
    "clients_per_round": 3, "rounds": 3, "eval_every": 1, "batch_size": 4, "learning_rate": 0.3, "latency": "har",
}  # fmt: skip


def make_task(form: Any, model: Any = Words, **options: Any) -> fb.Task:
    clients = {f"c{seed}": form(seed) for seed in range(4)}
    return fb.Task(**{**OPTIONS, "clients": clients, "test": form(9), "model": model, **options})


def run(task: fb.Task, **options: Any) -> list[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fb.run(task, "fedbalancer[w=1]", seed=0, **options)
    return [*result.evals["loss"].to_list(), *result.evals["accuracy"].to_list()]


@pytest.fixture(scope="module")
def expected() -> list[float]:
    values = run(make_task(padded))
    assert values[3] < values[0] - 0.01  # it learns
    return values


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_samples_trains_alike(form: str, expected: list[float]) -> None:
    assert run(make_task(FORMS[form])) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("outputs", ["object", "dictionary", "tuple"])
def test_every_form_of_the_outputs_trains_alike(outputs: str, expected: list[float]) -> None:
    assert run(make_task(padded, lambda: Words(outputs))) == expected


def test_workers_share_dictionaries_and_ragged_rows() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    try:
        assert run(make_task(ragged), workers=2) == run(make_task(ragged))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_forward_function_adapts_the_call(expected: list[float]) -> None:
    def forward(model: Any, batch: Any) -> Any:
        return model(batch[:, :5].long(), batch[:, 5:])

    def joined(seed: int) -> Any:
        features, labels = padded(seed)
        return np.concatenate([features["ids"], features["mask"]], axis=1).astype(np.float32), labels

    assert run(make_task(joined, forward=forward)) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(BadData, match="forward must be a function, not str"):
        make_task(joined, forward="model")


def test_only_single_arrays_use_the_fast_backend() -> None:
    assert TorchTrainer(make_task(padded)).plan is None
    x, y = np.ones((4, 3), np.float32), np.array([0, 1, 0, 1])
    plain: dict[str, Any] = {"clients": {"ann": (x, y)}, "test": (x, y), "model": lambda: nn.Linear(3, 2)}
    assert TorchTrainer(fb.Task(**plain)).plan is not None
    assert TorchTrainer(fb.Task(**plain, forward=lambda model, x: model(x))).plan is None


def test_a_wrong_input_is_named() -> None:
    with pytest.raises(BadData, match=r"client 'c0': the model fails on 2 samples of shape idz .*unexpected keyword"):
        TorchTrainer(make_task(lambda seed: ({"idz": padded(seed)[0]["ids"]}, padded(seed)[1])))
    odd = {**{f"c{seed}": padded(seed) for seed in range(2)}, "odd": in_order(3)}
    with pytest.raises(BadData, match=r"client 'odd' has samples of shape 0 \(5,\), 1 \(5,\), but client 'c0' has"):
        make_task(padded, clients=odd)
    short = ({"ids": np.ones((3, 2), int), "mask": np.ones((4, 2), int)}, np.zeros(3, int))
    with pytest.raises(BadData, match="client 'ann' has 4 rows of feature 'mask' but 3 of 'ids'"):
        make_task(padded, clients={"ann": short})
    bad = padded(0)[0] | {"mask": np.full((12, 5), np.nan)}
    with pytest.raises(BadData, match="client 'ann' has a NaN or infinite feature 'mask' in sample 0"):
        make_task(padded, clients={"ann": (bad, padded(0)[1])})
    with pytest.raises(BadData, match="mask = 'mask' requires features that are a dictionary"):
        make_task(lambda seed: (Ragged(sentences(seed)[0], mask="mask"), sentences(seed)[1]))


class Tags(Net):  # type: ignore[misc]
    """Scores of every word of a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(9, 6), nn.Linear(6, 3)

    def forward(self, ids: Any) -> Any:
        return SimpleNamespace(logits=self.last(self.table(ids)))


def tags(seed: int) -> Any:
    """Every word but the first has a label."""
    rows, _ = sentences(seed)
    return Ragged(rows), [[-100, *(row[1:] % 3)] for row in rows]


def test_ignored_labels_count_nowhere() -> None:
    task = make_task(tags, Tags)
    trainer = TorchTrainer(task)
    weights = trainer.initial_weights(0)
    losses = trainer.losses(weights, "c0")
    module = Tags()
    parameters = torch.from_numpy(weights)
    nn.utils.vector_to_parameters(parameters, module.parameters())
    rows, _ = sentences(0)
    own = []
    for row in rows:
        logits = module(torch.from_numpy(row)[None]).logits[0, 1:]
        labels = torch.from_numpy(row[1:] % 3)
        own.append(float(nn.functional.cross_entropy(logits, labels)) if len(row) > 1 else 0.0)
    assert losses == pytest.approx(own, abs=1e-6)
    counted = [len(row) > 1 for row in sentences(9)[0]]
    assert 0 < sum(counted) < len(counted)
    evaluation = trainer.evaluate(weights)
    assert evaluation.samples == sum(counted)
    values = run(task)
    assert values[3] < values[0]
    assert all(0 <= value <= 1 for value in values[4:])


@pytest.mark.parametrize("backend", ["fast", "plain"])
def test_a_step_leaves_out_samples_with_an_ignored_label(backend: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 5)).astype(np.float32), rng.integers(0, 3, 8)
    y[[1, 4, 5]] = -100

    def update(rows: Any) -> Any:
        data = {"ann": (x[rows], y[rows])}
        trainer = TorchTrainer(fb.Task(data, (x, y), lambda: nn.Sequential(nn.Linear(5, 3))), backend)
        work = ClientWork("ann", np.arange(len(rows)), 1, len(rows), 0.5, 0.0, None, seed=0)
        return trainer.train(trainer.initial_weights(0), work).update

    assert update(np.arange(8)) == pytest.approx(update(np.flatnonzero(y >= 0)), abs=1e-6)
    with pytest.raises(BadData, match=r"has label -1 in sample 0; labels must be 0 or more, or -100 \(ignored\)"):
        fb.Task({"ann": (x[:1], np.array([-1]))}, (x, y), lambda: nn.Linear(5, 3))


def numbers(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(12, 4)).astype(np.float32), None


class Reconstructs(Net):  # type: ignore[misc]
    """Returns the loss of every sample, as an object or alone."""

    def __init__(self, as_object: bool = False, mean: bool = False) -> None:
        super().__init__()
        self.layers, self.as_object, self.mean = nn.Linear(4, 4), as_object, mean

    def forward(self, x: Any) -> Any:
        losses = ((self.layers(x) - x) ** 2).mean(dim=1)
        losses = losses.mean() if self.mean else losses
        return SimpleNamespace(loss=losses) if self.as_object else losses


def test_without_labels_the_model_returns_the_losses() -> None:
    values = run(make_task(numbers, Reconstructs))
    assert values[3] < values[0]
    assert np.isnan(values[4:]).all()
    with_object = run(make_task(numbers, lambda: Reconstructs(True)))
    assert with_object[:4] == values[:4]
    by_forward = make_task(numbers, lambda: Reconstructs().layers, forward=lambda net, x: ((net(x) - x) ** 2).mean(1))
    assert run(by_forward)[:4] == pytest.approx(values[:4], abs=1e-6)
    with pytest.raises(BadData, match=r"a model without labels must return one value per sample.* not shape \(\)"):
        run(make_task(numbers, lambda: Reconstructs(True, mean=True)))


def test_a_custom_loss_receives_what_the_model_returns() -> None:
    def loss(outputs: Any, labels: Any) -> Any:
        return nn.functional.cross_entropy(outputs.logits, labels, reduction="none")

    task = make_task(padded, lambda: Words("object"), loss=loss)
    assert run(task) == run(make_task(padded))


class Lazy(Mapping[str, Any]):
    """Clients that are loaded on access."""

    def __init__(self, count: int) -> None:
        self.count, self.loads = count, 0

    def __getitem__(self, client: str) -> Any:
        self.loads += 1
        return Listed(int(client[1:]))

    def __iter__(self) -> Iterator[str]:
        return (f"c{number}" for number in range(self.count))

    def __len__(self) -> int:
        return self.count


class Sized(Lazy):
    @property
    def sizes(self) -> Mapping[str, int]:
        return dict.fromkeys(self, 12)


def test_clients_without_sizes_are_counted_once_and_a_run_says_so() -> None:
    lazy = Lazy(30)
    task = make_task(Listed, clients=lazy)
    assert lazy.loads == 30
    with pytest.warns(UserWarning, match="clients is a Lazy without sizes, so all 30 clients were loaded .* `sizes`"):
        first = fb.run(task, "fedavg+1t", rounds=2)
    assert lazy.loads < 90
    sized = Sized(30)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*without sizes")
        second = fb.run(make_task(Listed, clients=sized), "fedavg+1t", rounds=2)
    assert sized.loads < 40
    assert first.evals.equals(second.evals)


def test_the_manifest_says_why_the_plain_backend_trains(tmp_path: Any) -> None:
    def why(task: fb.Task, name: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fb.run(task, "fedavg+1t", rounds=1, out=tmp_path / name)
        training = json.loads((tmp_path / name / "manifest.json").read_text())["training"]
        return training["path"], training["why"]

    assert why(make_task(padded), "a") == ("plain", "the features are a dictionary; the fast backend takes one array")
    assert why(make_task(in_order), "b")[1].startswith("the features are a tuple")
    assert why(make_task(tags, Tags), "c")[1].startswith("the features are ragged")
    assert why(make_task(padded, forward=lambda model, x: model(**x)), "d")[1].startswith(
        "the task has its own forward"
    )


class Listing(Sized):
    """Clients on demand, from a function."""

    def __init__(self, load: Any) -> None:
        super().__init__(3)
        self.load = load

    def __getitem__(self, client: str) -> Any:
        return self.load(int(client[1:]))


def test_a_client_made_on_demand_may_have_rows_of_equal_length_by_chance() -> None:
    def even(seed: int) -> Any:
        return np.ones((12, 2), int), np.ones((12, 2), int)

    assert len(run(make_task(tags, Tags, clients=Listing(even)))) == 8
    words = "client 'c0' has 12 features but 11 labels"
    with pytest.raises(BadData, match=words):
        run(make_task(tags, Tags, clients=Listing(lambda seed: (np.ones((12, 2), int), np.ones((11, 2), int)))))
    with pytest.raises(BadData, match=r"client 'c[012]' has 7 samples, but `sizes` of the clients has 12"):
        run(make_task(tags, Tags, clients=Listing(lambda seed: (np.ones((7, 2), int), np.ones((7, 2), int)))))


def test_a_run_with_an_ignored_label_counts_the_other_classes() -> None:
    def some(seed: int) -> Any:
        x = np.random.default_rng(seed).normal(size=(12, 3)).astype(np.float32)
        labels = (x[:, 0] > 0).astype(int)
        labels[::4] = -100
        return x, labels

    values = run(make_task(some, lambda: nn.Linear(3, 2)))
    assert values[3] < values[0]
    assert run(make_task(some, lambda: nn.Linear(3, 2)), settings={"label_noise": 0.2})


def test_outputs_of_any_form_are_moved_and_converted() -> None:
    half = torch.ones(2, dtype=torch.bfloat16)
    Named = namedtuple("Named", ["scores", "ids"])
    forms = [
        half,
        (half, 1),
        [half],
        {"logits": half},
        SimpleNamespace(logits=half, n=3),
        Named(half, torch.ones(2).int()),
    ]
    for form in forms:
        changed = to_float32(form)
        assert type(changed) is type(form)
        scores = find_logits(changed[0] if isinstance(changed, list) else changed)
        assert scores.dtype == torch.float32
        moved = to_device(form, "meta")
        assert find_logits(moved[0] if isinstance(moved, list) else moved).device.type == "meta"
    assert half.dtype == torch.bfloat16
    assert forms[4].logits is half  # type: ignore[union-attr]
    assert to_device("text", "meta") == "text"


def test_a_summary_describes_every_form() -> None:
    assert "ids: 1 to 5 steps per sample, int64, from 1 to 8" in describe_task(make_task(ragged))
    assert "0: 5 per sample, int32" in describe_task(make_task(in_order))
    assert "labels    none" in describe_task(make_task(numbers, Reconstructs))
    assert count_labels(make_task(tags, Tags)).all_labels == 3


def test_the_clock_counts_samples_of_typical_length() -> None:
    def long_first(seed: int) -> Any:
        rows, _ = sentences(seed)
        return Ragged([np.ones(50, int), *rows[1:]]), [[-100, *[0] * (len(row) - 1)] for row in [range(50), *rows[1:]]]

    short, long = (count_flops(make_task(form, Tags, latency=None)).train_flops for form in (tags, long_first))
    assert 0 < long < 2 * short


def test_a_model_file_refuses_what_only_torch_can_train() -> None:
    plain = np.ones((2, 3), np.float32), np.array([0, 1])
    assert check_file_samples(plain, "ann") is plain
    with pytest.raises(BadData, match="ann: a model file takes one array of features and one of labels"):
        check_file_samples(padded(0), "ann")
    with pytest.raises(BadData, match="ann: a model file cannot ignore labels of -100"):
        check_file_samples((plain[0], np.array([0, -100])), "ann")


class Wraps(Net):  # type: ignore[misc]
    """Layers that the fast backend knows, with outputs in any form."""

    def __init__(self, outputs: str) -> None:
        super().__init__()
        self.first, self.last, self.outputs = nn.Linear(64, 128), nn.Linear(128, 3), outputs

    def forward(self, x: Any) -> Any:
        scores = self.last(torch.relu(self.first(x)))
        kinds = {"object": SimpleNamespace(logits=scores), "dictionary": {"logits": scores}, "tuple": (scores, x)}
        return kinds.get(self.outputs, scores)


def wide(seed: int) -> Any:
    x = np.random.default_rng(seed).normal(size=(12, 64)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1)


@pytest.mark.parametrize("outputs", ["object", "dictionary", "tuple"])
def test_the_fast_backend_accepts_every_form_of_the_outputs(outputs: str) -> None:
    expected = run(make_task(wide, lambda: Wraps("tensor")), backend="plain")
    assert run(make_task(wide, lambda: Wraps(outputs)), backend="fast") == pytest.approx(expected, abs=1e-5)


class Incomplete(dict[str, Any]):
    """A mapping whose sizes name a client that it does not have."""

    sizes: ClassVar = {"ann": 12, "bob": 12}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": Incomplete(ann=wide(0))}, "`clients` has no samples of client 'bob'"),
        ({"model": torch.nn.Linear(64, 3)}, "the task's model is a Linear; give a function that makes it"),
        ({"model": torch.nn.Flatten}, "the task's model has no parameter to train: it has none"),
    ],
)
def test_a_task_that_cannot_train_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadData, match=words):
        run(replace(make_task(wide, lambda: Wraps("tensor")), **changes))
