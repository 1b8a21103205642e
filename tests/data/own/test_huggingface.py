"""Hugging Face data sets and partitions of flwr-datasets become lazy clients with the right rows and classes."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName
from fedbalancer.core.samples import Ragged
from fedbalancer.simulation.executors.shared_memory import SharedValue

pytest.importorskip("torch", reason="models need the extra [torch]")
datasets = pytest.importorskip("datasets", reason="needs the extra [data]")
flwr_datasets = pytest.importorskip("flwr_datasets", reason="needs the extra [data]")
partitioners = flwr_datasets.partitioner

RNG = np.random.default_rng(0)
IDS = [RNG.integers(1, 30, RNG.integers(2, 9)).tolist() for _ in range(120)]
NOTES = datasets.Dataset.from_dict(
    {
        "input_ids": IDS,
        "attention_mask": [[1] * len(row) for row in IDS],
        "label": [["no", "yes"][row[0] % 2] for row in IDS],
        "kind": [row[0] % 2 for row in IDS],
        "who": [f"u{row % 6}" for row in range(120)],
        "age": [float(row[0]) for row in IDS],
        "text": ["words"] * 120,
    }
)
TOKENS = ["input_ids", "attention_mask"]
OPTIONS: dict[str, Any] = {
    "clients_per_round": 3, "rounds": 2, "eval_every": 1, "batch_size": 8, "learning_rate": 0.1, "latency": "har",
}  # fmt: skip


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def notes(**options: Any) -> fb.Task:
    given: dict[str, Any] = {"partition_by": "who", "features": TOKENS, "model": bert, **OPTIONS}
    return fb.Task.from_huggingface(NOTES, **{**given, **options})


def run(task: fb.Task, **options: Any) -> list[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fb.run(task, "fedbalancer[w=1]", seed=0, **options)
    return [*result.evals["loss"].to_list(), *result.evals["accuracy"].to_list()]


def test_users_labels_and_tokens_are_those_of_the_data_set() -> None:
    task = notes(test_share=0.2)
    held_out = task.notes["held_out"]
    assert len(held_out) == 1
    assert sorted([*task.clients, *held_out]) == [f"u{number}" for number in range(6)]
    assert (task.classes, task.notes["labels"], task.sizes["u1"]) == (2, ["no", "yes"], 20)
    features, labels = task.samples("u1")
    rows = [row for row in range(120) if row % 6 == 1]
    assert [row.tolist() for row in features["input_ids"]] == [IDS[row] for row in rows]
    assert labels.tolist() == [IDS[row][0] % 2 for row in rows]
    assert task.labels("u1").tolist() == labels.tolist()


def test_a_bert_learns_and_the_mask_may_be_made_here() -> None:
    values = run(notes())
    assert values[2] < values[0]
    masked = notes(features=["input_ids"], mask="attention_mask")
    assert run(masked) == pytest.approx(values, abs=1e-6)
    plain = fb.Task(
        {client: notes().samples(client) for client in notes().clients}, notes().test, bert, classes=2, **OPTIONS
    )
    assert run(plain) == pytest.approx(values, abs=1e-6)


def test_workers_read_the_data_set_too() -> None:
    """A worker trains with the copy that it is sent."""

    def linear() -> Any:
        import torch

        return torch.nn.Linear(1, 2)

    task = notes(features="age", model=linear, forward=lambda model, x: model(x[:, None] / 30))
    assert run(SharedValue(task).value) == run(task)


def test_one_column_is_one_input_and_a_model_may_be_named() -> None:
    task = notes(features="age", label="label", model="mlp")
    assert task.test[0].dtype == np.float32
    vectors = datasets.Dataset.from_dict({"x": [[1, 2, 3]] * 12, "label": [0, 1] * 6})
    by_name = fb.Task.from_huggingface(vectors, partition="iid", clients=2, model={"name": "mlp", "hidden": []})
    assert by_name.test[0].dtype == np.float32
    assert by_name.samples("client-0")[0].shape[1:] == (3,)
    assert run(by_name)


def test_classes_come_from_the_features_of_the_data_set() -> None:
    features = datasets.Features({"x": datasets.Value("float32"), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    few = datasets.Dataset.from_dict({"x": [0.0] * 8, "label": [0] * 8}, features=features)
    task = fb.Task.from_huggingface(few, partition="iid", clients=2, model=bert)
    assert (task.classes, task.notes["labels"]) == (3, ["a", "b", "c"])


def test_images_lists_of_labels_and_floats_are_read() -> None:
    image = pytest.importorskip("PIL.Image").fromarray(np.full((4, 4, 3), 7, np.uint8))
    pictures = datasets.Dataset.from_dict({"image": [image] * 6, "label": [0, 1] * 3})
    pictures = pictures.cast_column("image", datasets.Image())
    task = fb.Task.from_huggingface(pictures, partition="iid", clients=2, model=bert)
    assert task.test[0].shape[1:] == (4, 4, 3)
    assert task.test[0].dtype == np.uint8
    tagged = NOTES.select_columns(["input_ids", "who"]).add_column(
        "tags", [[value % 3 for value in row] for row in IDS]
    )
    task = fb.Task.from_huggingface(tagged, partition_by="who", label="tags", model=bert)
    assert isinstance(task.test[1], Ragged)
    assert (task.test[1].padding, task.classes) == (-100, 3)
    floats = notes(label="age", features="input_ids", loss=lambda outputs, labels: outputs)
    assert floats.classes is None
    assert floats.samples("u1")[1].dtype.kind == "f"


def test_without_a_label_column_there_are_no_labels() -> None:
    task = fb.Task.from_huggingface(NOTES.select_columns(["age", "who"]), partition_by="who", model=bert)
    assert task.test[1].shape == (20, 0)
    assert task.labels("u1").shape == (20, 0)


def test_a_transform_of_the_users_is_kept() -> None:
    def double(batch: Any) -> Any:
        return {"x": [2 * age for age in batch["age"]], "y": [age > 15 for age in batch["age"]]}

    transformed = NOTES.with_transform(double)
    task = fb.Task.from_huggingface(
        transformed, partition_by="who", features="x", label="y", model=bert, loss=lambda outputs, labels: outputs
    )
    rows = [row for row in range(120) if row % 6 == 1]
    assert task.samples("u1")[0].tolist() == [2.0 * IDS[row][0] for row in rows]
    assert task.labels("u1").tolist() == [IDS[row][0] > 15 for row in rows]


def test_splits_of_a_dictionary_are_used() -> None:
    splits = datasets.DatasetDict({"train": NOTES.select(range(60)), "test": NOTES.select(range(60, 70))})
    given: dict[str, Any] = {"partition_by": "who", "features": TOKENS, "model": bert}
    task = fb.Task.from_huggingface(splits, **given)
    assert (len(task.clients), len(task.test[1])) == (6, 10)
    assert len(fb.Task.from_huggingface(splits, **given, test=NOTES).test[1]) == 120
    with pytest.raises(UnknownName, match="unknown split of the data set 'valid'"):
        fb.Task.from_huggingface(splits, **given, test="valid")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"partition_by": "whom"}, UnknownName, "unknown column of the data set 'whom'; did you mean who"),
        ({"label": "sort"}, UnknownName, "unknown column of the data set 'sort'"),
        ({"features": ["input_idz"]}, UnknownName, "did you mean input_ids"),
        ({"features": None}, BadData, "column 'text' holds text; convert it to numbers"),
        ({"partition_by": None}, BadSetting, "specify the users, or set partition"),
        ({"partition": "iid", "clients": 3}, BadSetting, "omit the partition or the users"),
        ({"subset": "en"}, BadSetting, "subset = 'en' is for a data set by name"),
        ({"test": "test"}, BadSetting, "names a split, but the data set has none"),
        ({"alfa": 3}, UnknownName, "did you mean alpha"),
        ({"model": "mlp"}, BadSetting, "a model by name takes one array of features"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        notes(**options)
    with pytest.raises(BadData, match=r"must be a datasets.Dataset, a DatasetDict or a name, not list"):
        fb.Task.from_huggingface([], partition_by="who", model=bert)


ALL: dict[str, Any] = {
    "IidPartitioner": lambda make: make(4),
    "LinearPartitioner": lambda make: make(4),
    "SquarePartitioner": lambda make: make(4),
    "ExponentialPartitioner": lambda make: make(4),
    "SizePartitioner": lambda make: make([20, 40, 60]),
    "IdToSizeFncPartitioner": lambda make: make(4, lambda number: number + 1),
    "DirichletPartitioner": lambda make: make(4, "label", 0.5, min_partition_size=2),
    "InnerDirichletPartitioner": lambda make: make([30, 30, 30], "kind", 0.5),
    "ShardPartitioner": lambda make: make(4, "label", num_shards_per_partition=2),
    "PathologicalPartitioner": lambda make: make(4, "label", 2),
    "NaturalIdPartitioner": lambda make: make("who"),
    "GroupedNaturalIdPartitioner": lambda make: make("who", 2),
    "ContinuousPartitioner": lambda make: make(4, "age", 0.5),
    "DistributionPartitioner": lambda make: make(np.full((2, 2), 0.5), 4, 1, "kind", 1),
}


@pytest.mark.parametrize("name", sorted(set(partitioners.__all__) - {"Partitioner"}))
def test_every_partitioner_that_splits_rows_makes_clients(name: str) -> None:
    if name.startswith("Vertical"):
        vertical = partitioners.VerticalEvenPartitioner(2)
        with pytest.raises(BadData, match=r"has no column .* vertical partitions are not supported"):
            fb.Task.from_flower_datasets((NOTES, vertical), features=TOKENS, model=bert)
        return
    make = ALL[name](getattr(partitioners, name))
    task = fb.Task.from_flower_datasets((NOTES, make), features=TOKENS, label="label", model=bert, test_share=0.3)
    held_out = task.notes["held_out"]
    assert len(held_out) >= 1
    client = next(iter(task.clients))
    features, labels = task.samples(client)
    assert len(labels) == len(features["input_ids"]) == task.sizes[client]
    assert sum(task.sizes.values()) + len(task.test[1]) <= 120
    if name == "NaturalIdPartitioner":
        assert {*task.clients, *held_out} == {f"u{number}" for number in range(6)}


def test_a_federated_data_set_trains_a_bert(tmp_path: Any) -> None:
    for name, rows in (("train", range(80)), ("test", range(80, 120))):
        NOTES.select(rows).to_json(tmp_path / f"{name}.jsonl")
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "test")}
    federated = flwr_datasets.FederatedDataset(
        dataset="json", partitioners={"train": partitioners.NaturalIdPartitioner("who")}, data_files=files,
        cache_dir=str(tmp_path),
    )  # fmt: skip
    task = fb.Task.from_flower_datasets(federated, features=TOKENS, model=bert, **OPTIONS)
    assert (sorted(task.clients), len(task.test[1])) == ([f"u{number}" for number in range(6)], 40)
    values = run(task)
    assert values[2] < values[0]


def test_every_client_may_have_tests_of_its_own() -> None:
    parts = partitioners.NaturalIdPartitioner("who")
    flower = fb.Task.from_flower_datasets(
        (NOTES, parts), features=TOKENS, label="label", model=bert, client_test_share=0.25, **OPTIONS
    )
    for task in (notes(client_test_share=0.25), flower):
        assert set(task.sizes.values()) == {15}
        assert task.client_tests.keys() == task.clients.keys()
        client = next(iter(task.clients))
        features, labels = task.client_tests[client]
        assert len(labels) == len(features["input_ids"]) == 5
    assert len(run(flower)) == 6


TOML = """
[data]
kind = "huggingface"
path = "{path}"
user = "who"
features = ["input_ids"]
mask = "attention_mask"
label = "kind"
test_share = 0.2
[model]
name = "own_bert:make"
[settings]
rounds = 1
latency = "har"
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data set as `save_to_disk` writes it, and as a Parquet file that is loaded by name."""
    folder = tmp_path_factory.mktemp("stored")
    NOTES.save_to_disk(folder / "saved")
    datasets.DatasetDict(train=NOTES, test=NOTES.select(range(30))).save_to_disk(folder / "splits")
    (folder / "named").mkdir()
    NOTES.to_parquet(folder / "named" / "train.parquet")
    (folder / "own_bert.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(1, 2)\n")
    return folder


@pytest.mark.parametrize(("name", "sizes", "tested"), [("saved", 20, 20), ("named", 20, 20), ("splits", 20, 30)])
def test_a_folder_is_read_as_the_data_set(
    stored: Path, name: str, sizes: int, tested: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    from_path = fb.Task.from_huggingface(
        stored / name, partition_by="who", features=TOKENS, label="label", model=bert, **OPTIONS
    )
    given = notes(label="label")
    client = next(client for client in given.clients if client in from_path.clients)
    assert (from_path.name, from_path.sizes[client], len(from_path.test[1])) == (name, sizes, tested)
    for mine, theirs in zip(
        from_path.samples(client)[0]["input_ids"], given.samples(client)[0]["input_ids"], strict=True
    ):
        assert mine.tolist() == theirs.tolist()


def test_a_task_file_names_a_folder(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (stored / "notes.toml").write_text(TOML.format(path="saved"))
    monkeypatch.chdir(stored.parent)
    task = fb.load_task(str(stored / "notes.toml"))
    assert (task.name, len(task.clients), task.classes) == ("notes", 5, 2)
    assert sorted(task.samples(next(iter(task.clients)))[0]) == ["input_ids"]


@pytest.mark.parametrize(
    ("path", "more", "error", "words"),
    [
        ("nowhere", "", BadData, "'nowhere' cannot be loaded"),
        ("./nowhere", "", BadData, "'./nowhere' does not exist; give a folder, or a name"),
        ("saved", 'subset = "en"', BadSetting, "subset = 'en' is for a data set that is loaded by name"),
        ("splits", 'test = "tset"', UnknownName, "did you mean test"),
        ("saved", "padding = true", BadSetting, "padding = True in \\[data\\]"),
        ("saved", "spilt = 1", UnknownName, "did you mean split"),
    ],
)  # fmt: skip
def test_a_wrong_task_file_is_refused(
    stored: Path, path: str, more: str, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    text = TOML.format(path=path).replace("test_share = 0.2\n", more + "\n")
    (stored / "wrong.toml").write_text(text)
    with pytest.raises(error, match=words):
        fb.load_task(str(stored / "wrong.toml"))


def test_what_is_no_partition_is_refused() -> None:
    with pytest.raises(BadData, match=r"must be a FederatedDataset or a pair .dataset, partitioner., not Dataset"):
        fb.Task.from_flower_datasets(NOTES, model=bert)
    used = partitioners.IidPartitioner(4)
    used.dataset = NOTES.select(range(10))
    with pytest.raises(BadData, match="the IidPartitioner already has another data set"):
        fb.Task.from_flower_datasets((NOTES, used), features=TOKENS, model=bert)
    with pytest.raises(BadSetting, match="split, and test by name, are for a FederatedDataset"):
        fb.Task.from_flower_datasets((NOTES, partitioners.IidPartitioner(4)), split="train", model=bert)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingData, match=r"needs the package datasets; install it .*fedbalancer\[data\]"):
        fb.Task.from_huggingface("ag_news", partition="iid", clients=3, model=bert)
