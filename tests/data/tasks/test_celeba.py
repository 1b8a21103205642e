"""CelebA: the published model and settings, LEAF's data as users have it, and a stand-in that says what it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.types import ClientWork
from fedbalancer.data import load_task
from fedbalancer.data.tasks import celeba
from fedbalancer.training.trainer import TorchTrainer

torch = pytest.importorskip("torch", reason="models need the extra [torch]")

SHARED = Path(os.environ.get("FEDBALANCER_DATA", Path(__file__).parents[3].parent / "shared" / "data"))


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBALANCER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDBALANCER_CACHE", str(tmp_path / "cache"))


def write_celeba(folder: Path, people: dict[str, int]) -> Path:
    """LEAF's JSON without a split, and an image for every name in it; half of each person's images smile."""
    images = folder / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    names = {person: [f"{person}{k:04d}.jpg" for k in range(count)] for person, count in people.items()}
    for number, name in enumerate(name for mine in names.values() for name in mine):
        Image.new("RGB", (178, 218), (number * 37 % 256, number * 91 % 256, 40)).save(images / name)
    data = {person: {"x": mine, "y": [k % 2 for k in range(len(mine))]} for person, mine in names.items()}
    document = {"users": list(people), "num_samples": list(people.values()), "user_data": data}
    (folder / "all_data.json").write_text(json.dumps(document), encoding="utf-8")
    return images


def test_the_published_model_has_the_published_size() -> None:
    model = celeba.make_model()
    assert sum(part.numel() for part in model.parameters()) == 31_202
    assert not list(model.buffers()), "batch statistics are never remembered"


def test_the_norm_takes_the_statistics_of_the_batch_in_the_test_too() -> None:
    model, images = celeba.make_model(), torch.rand(4, 3, 84, 84) * 255
    trained, tested = model.train()(images), model.eval()(images)
    assert torch.equal(trained, tested)
    assert not torch.allclose(model(images[:2]), trained[:2])


def test_pooling_an_odd_side_keeps_its_last_pixel() -> None:
    sides, x = [], torch.rand(1, 3, 84, 84)
    for layer in celeba.make_model().blocks:
        x = layer(x)
        if isinstance(layer, torch.nn.MaxPool2d):
            sides.append(x.shape[-1])
    assert sides == [42, 21, 11, 6]


def test_the_settings_are_the_published_ones(tmp_path: Path) -> None:
    """As they are for a mean loss; that they are the published step is the next test."""
    write_celeba(tmp_path / "data" / "celeba", {str(k): 1 for k in range(10)})
    paper, small = celeba.load("paper"), celeba.load("small")
    assert paper.settings().items() >= {
        "batch_size": 10, "epochs": 5, "learning_rate": 0.01, "clients_per_round": 9, "rounds": 100, "eval_every": 5,
        "clip_norm": None, "prox_mu": 0.01, "sample_selection_deadline": 1, "latency": "celeba",
    }.items()  # fmt: skip
    assert celeba.SETTINGS["paper"]["clients_per_round"] == 100
    assert small.clients_per_round == 5
    assert small.model_bytes == paper.model_bytes == 124_808


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_a_step_is_the_published_one_with_its_proximal_term(scale: str) -> None:
    """Published: .001 (gradient of the summed loss of ten images + .1 (w - w0)). Ours: the mean loss."""
    gradients, moved = np.random.default_rng(0).normal(size=(2, 10, 50))
    published = 0.001 * (gradients.sum(axis=0) + 0.1 * moved[0])
    settings = celeba.SETTINGS[scale]
    ours = settings["learning_rate"] * (gradients.mean(axis=0) + settings["prox_mu"] * moved[0])
    assert settings["batch_size"] == 10
    assert ours == pytest.approx(published, rel=1e-9)


def test_leafs_people_are_split_and_their_last_batch_of_one_image_trains(tmp_path: Path) -> None:
    write_celeba(tmp_path / "data" / "celeba", {"7": 3, "8": 3, "9": 3})
    task = load_task("celeba", scale="paper")
    assert task.variant == "leaf"
    assert len(task.clients) == 2
    assert task.test[0].shape == (3, 3, 84, 84)
    assert task.test[0].dtype == np.uint8
    trainer, client = TorchTrainer(task), next(iter(task.clients))
    work = ClientWork(client, np.arange(3), 2, 2, 0.01, 0.1, None, 0)  # a batch of two images, then one of one
    trained = trainer.train(trainer.initial_weights(0), work)
    assert np.isfinite(trained.update).all()
    assert trained.update.any()
    assert trained.seen.tolist() == [0, 1, 2]


def test_the_second_start_reads_no_image_and_a_missing_one_is_noticed(tmp_path: Path) -> None:
    images = write_celeba(tmp_path / "data" / "celeba", {"7": 2, "8": 2})
    first = celeba.load()
    (made,) = (tmp_path / "cache" / "prepared").glob("celeba-*")
    before = made.stat().st_mtime_ns
    assert list(celeba.load().clients) == list(first.clients)
    assert made.stat().st_mtime_ns == before
    (images / "80001.jpg").unlink()
    with pytest.raises(BadData, match=r"user '8', sample 1: the image .*80001\.jpg does not exist"):
        celeba.load()


def test_without_data_it_says_what_to_do() -> None:
    with pytest.raises(MissingData, match=r"task 'celeba' needs celeba in .*; run: fedbalancer data"):
        celeba.load()


def test_sunglasses_are_20_people_with_other_images_to_test(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (SHARED / "cmu_faces_64x60.npz").is_file():
        pytest.skip(f"the stand-in is not in {SHARED}; FEDBALANCER_DATA names another folder")
    monkeypatch.setenv("FEDBALANCER_DATA", str(SHARED))
    task = celeba.load(variant="sunglasses")
    assert task.variant == "sunglasses"
    assert len(task.clients) == 20
    assert 300 < len(task.test[1]) < 330
    assert sum(task.sizes.values()) + len(task.test[1]) == 624
    features, labels = next(iter(task.clients.values()))
    assert features.shape == (len(labels), 3, 42, 42)
    assert task.model()(torch.from_numpy(features[:3]).float()).shape == (3, 2)
    assert 0.4 < labels.mean() < 0.6
