"""A task in a TOML file: read whole, refused in one line, run and resumed as a real process."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import commands
import numpy as np
import pytest
from typer.testing import CliRunner

import fedbalancer as fb
from fedbalancer.cli.app import app
from fedbalancer.data.catalogue.summary import describe_task
from fedbalancer.store import read_manifest

GOOD = """
name = "tiny"
[data]
kind = "npz"
path = "data/tiny.npz"
user = "who"
test_share = 0.3
[model]
name = "mlp"
hidden = [4]
[settings]
rounds = 2
clients_per_round = 2
eval_every = 1
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a task file, and its data beside it."""
    (tmp_path / "home" / "data").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    who = np.array([f"u{number % 6}" for number in range(60)])
    np.savez(tmp_path / "home" / "data" / "tiny.npz", x=rng.normal(size=(60, 3)) + y[:, None], y=y, who=who)
    (tmp_path / "home" / "my_task.toml").write_text(GOOD)
    return tmp_path


def cli(folder: Path, *arguments: str) -> CompletedProcess[str]:
    return commands.run(folder, *arguments, COLUMNS="160", NO_COLOR="1", TERM="dumb")


def test_a_file_chooses_optimizer_schedule_and_steps(place: Path) -> None:
    file = place / "home" / "my_task.toml"
    more = 'optimizer = {name = "adamw", weight_decay = 0.01}\nschedule = {name = "cosine", rounds = 2}\n'
    file.write_text(GOOD + more + "accumulate = 2\ndrop_last = true\n")
    task = fb.load_task(str(file))
    known = {key: task.settings()[key] for key in ("optimizer", "schedule", "accumulate", "drop_last")}
    texts = {"optimizer": "adamw(weight_decay=0.01)", "schedule": "cosine(rounds=2)"}
    assert known == {**texts, "accumulate": 2, "drop_last": True}
    fb.run(task, settings={"learning_rate": 0.02}, out=place / "home" / "r")
    training = json.loads((place / "home" / "r" / "manifest.json").read_text())["training"]
    assert training["path"] == "plain"
    assert {**training, **known, "learning_rate": 0.02} == training


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('optimizer = "adamv"', "did you mean adam"),
        ('optimizer = {name = "adam", lr = 0.1}', "set learning_rate = 0.1 instead"),
        ('optimizer = {name = "adam", weight_decay = -1.0}', "weight_decay"),
        ('schedule = {name = "cosine"}', "needs rounds"),
        ("accumulate = 0", "accumulate = 0 must be a whole number >= 1"),
        ('dtype = "float16"', "dtype = 'float16' must be float32 or bfloat16"),
    ],
)
def test_a_bad_option_of_the_training_is_one_line(place: Path, line: str, words: str) -> None:
    (place / "home" / "my_task.toml").write_text(GOOD + line + "\n")
    done = CliRunner().invoke(app, ["run", str(place / "home" / "my_task.toml"), "--out", str(place / "r")])
    assert done.exit_code == 2
    (problem,) = done.stderr.splitlines()
    assert words in problem
    assert not (place / "r").exists()


def test_the_file_is_the_task(place: Path) -> None:
    task = fb.load_task(str(place / "home" / "my_task.toml"))
    assert (task.name, task.rounds, task.clients_per_round, task.classes) == ("tiny", 2, 2, 2)
    assert len(task.clients) == 4
    assert len(task.notes["held_out"]) == 2
    fewer = fb.load_task(str(place / "home" / "my_task.toml"), users=3)
    assert list(fewer.clients) == list(task.clients)[:3]
    np.testing.assert_array_equal(fewer.test[1], task.test[1])


def test_a_file_names_the_devices_of_its_runs(place: Path) -> None:
    file = place / "home" / "my_task.toml"
    fleet = fb.Fleet([fb.Device(id="u0", batch_s=2.0), fb.Device(id="other", batch_s=1.0)])
    fleet.to_csv(place / "home" / "data" / "fleet.csv")
    file.write_text(GOOD + '[devices]\nfile = "data/fleet.csv"\n')
    assert fb.load_task(str(file)).devices == fleet
    fb.run(str(file), "fedavg+1t", rounds=1, timing_only=True, out=place / "run")
    assert read_manifest(place / "run")["spec"]["devices"]["sha256"] == fleet.digest
    file.write_text('devices = "fleet.csv"\n' + GOOD)
    with pytest.raises(fb.FedBalancerError, match=r"devices = 'fleet.csv' must be a table, \[devices\]"):
        fb.load_task(str(file))


def test_folder_and_parquet_and_test_are_found_beside_the_file(place: Path) -> None:
    import polars as pl

    home = place / "home"
    for user in ("ann", "bob", "test"):
        np.savez(home / "data" / f"{user}.npz", x=np.zeros((4, 3)), y=np.arange(4) % 2)
    (home / "data" / "tiny.npz").unlink()
    (home / "f.toml").write_text('[data]\nkind = "folder"\npath = "data"\n[model]\nname = "mlp"\n')
    assert fb.load_task(str(home / "f.toml")).sizes == {"ann": 4, "bob": 4}
    assert fb.load_task(str(home / "f.toml")).name == "f"
    frame = pl.DataFrame({"a": [0.0, 1.0] * 4, "kind": ["x", "y"] * 4})
    frame.write_parquet(home / "data" / "p.parquet")
    (home / "p.toml").write_text(
        '[data]\nkind = "parquet"\npath = "data/p.parquet"\ntest = "data/p.parquet"\nlabel = "kind"\nfeatures = ["a"]\n'
        'partition = "iid"\nclients = 2\n[model]\nname = "mlp"\n'
    )
    task = fb.load_task(str(home / "p.toml"))
    assert task.sizes == {"client-0": 4, "client-1": 4}
    assert "partitioned by iid" in describe_task(task)


def test_the_summary_fits_a_screen(place: Path) -> None:
    text = describe_task(fb.load_task(str(place / "home" / "my_task.toml")), {"rounds": 9, "w": 3})
    lines = text.splitlines()
    assert len(lines) <= 20
    assert max(len(line) for line in lines) <= 110
    for words in ("tiny", "4 with 10 / 10 / 10", "2 classes", "3 per sample", "20 samples of 2 held-out users",
                  "26 parameters", "rounds 9", "w 3"):  # fmt: skip
        assert words in text


def test_run_describes_the_task_and_resumes_from_any_folder(place: Path) -> None:
    done = cli(place, "run", "home/my_task.toml", "--method", "fedavg+1t", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["rounds"], result["out"]) == (2, "runs/my_task-fedavg+1t-seed-0")
    assert done.stderr.index("26 parameters") < done.stderr.index("round 1")
    folder = place / "runs" / "my_task-fedavg+1t-seed-0"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["task"]["source"] == str(place / "home" / "my_task.toml")
    manifest["spec"]["rounds"] = 4
    manifest["status"] = "stopped"
    del manifest["sha256"]  # it is meant
    (folder / "manifest.json").write_text(json.dumps(manifest))
    resumed = cli(place / "elsewhere", "resume", str(folder), "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["rounds"] == 4


def test_compare_loads_a_model_beside_the_file_in_every_worker(place: Path) -> None:
    (place / "home" / "my_nets.py").write_text(
        "import torch\ndef make(shape, classes):\n    return torch.nn.Linear(shape[0], classes)\n"
    )
    file = place / "home" / "my_task.toml"
    file.write_text(GOOD.replace('"mlp"\nhidden = [4]', '"my_nets:make"'))
    done = cli(
        place / "home", "compare", "my_task.toml", "--methods", "fedavg+1t,fedavg+wfa", "--seeds", "1", "--extend", "1"
    )
    assert done.returncode == 0, done.stderr
    assert "my_nets:make: 8 parameters" in done.stderr
    assert "report: runs/compare-my_task/report.html" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[settings]", "[setings]", "unknown key in my_task.toml 'setings'; did you mean settings"),
        ("rounds = 2", "round = 2", "unknown key in [settings] of my_task.toml 'round'; did you mean rounds"),
        ("rounds = 2", "rounds = 0", "setting rounds = 0"),
        ("rounds = 2", "w = 5", "w is not a setting of a task; use --set w=..."),
        ("test_share", "testshare", "unknown key in [data] of my_task.toml 'testshare'; did you mean test_share"),
        ("test_share = 0.3", 'test_share = "much"', "test_share = 'much' in [data]: input should be a valid number"),
        ("test_share = 0.3", "test_share = 3", "test_share = 3.0 must be"),
        ("test_share = 0.3", "shape = [3]", "unknown key in [data] of my_task.toml 'shape'"),
        ('kind = "npz"', 'kind = "npy"', "unknown kind of data in my_task.toml 'npy'; did you mean npz"),
        ('kind = "npz"\n', "", "[data] has no kind; it must be parquet, csv, images, folder, npz"),
        ('kind = "npz"', 'kind = "parquet"', "[data] has no label, which kind = 'parquet' needs"),
        ('path = "data/tiny.npz"\n', "", "[data] has no path"),
        ("data/tiny.npz", "data/tyni.npz", "tyni.npz"),
        ('user = "who"', 'user = "whom"', "'whom'; did you mean who"),
        ('user = "who"', "user = 3", "user = 3 in [data]"),
        ("[model]", "[mode]", "unknown key in my_task.toml 'mode'; did you mean model"),
        ('[model]\nname = "mlp"\nhidden = [4]', "", "has no [model]"),
        ("hidden", "hiden", "did you mean hidden"),
        ('name = "mlp"', 'name = "nowhere:make"', "there is no module 'nowhere'"),
        ('name = "mlp"\nhidden = [4]', 'name = "json:dumps"', "model json:dumps needs a value for obj"),
        (
            'name = "mlp"\nhidden = [4]',
            'name = "odd_objects:made"',
            "odd_objects:made is an object, Linear; it must be a function",
        ),
        ('user = "who"\n', "", "partition (dirichlet, shards or iid) and clients (my_task.toml)"),
        ("rounds = 2", "learning_rate = 'fast'", "must be a number > 0 and <= 1000 (my_task.toml, [settings])"),
        ("rounds = 2", "optimizer = 'adamm'", "? (my_task.toml, [settings])"),
        ("rounds = 2", "metric = 'f2'", "did you mean r2 or f1? (my_task.toml, [settings])"),
        ("rounds = 2", "[devices]\nkind = 'synthetic'\nslw = 1", "did you mean slow? (my_task.toml)"),
        ('name = "tiny"', "name = 3", "name = 3 must be text"),
        ('name = "tiny"', "name = [", "is not valid TOML"),
    ],
)
def test_mistakes_are_one_line(place: Path, old: str, new: str, words: str) -> None:
    assert old in GOOD
    (place / "home" / "odd_objects.py").write_text("import torch\nmade = torch.nn.Linear(3, 2)\n")
    file = place / "home" / "my_task.toml"
    file.write_text(GOOD.replace(old, new, 1))
    done = CliRunner().invoke(app, ["compare", str(file), "--out", str(place / "out")])
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert words in lines[0]
    assert not (place / "out").exists()


def test_mistakes_of_a_real_process(place: Path) -> None:
    (place / "home" / "my_task.toml").write_text(GOOD.replace("clients_per_round", "client_per_round"))
    done = cli(place / "home", "run", "my_task.toml")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.endswith("'client_per_round'; did you mean clients_per_round?")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--variant", "x"), "has no variants"),
        (("--users", "9"), "users is 9, but"),
        (("--method", "fedbalancr"), "did you mean fedbalancer"),
        (("--set", "learningrate=1"), "did you mean learning_rate"),
    ],
)
def test_arguments_are_checked_before_anything_is_printed(place: Path, arguments: tuple[str, str], words: str) -> None:
    done = CliRunner().invoke(app, ["run", str(place / "home" / "my_task.toml"), *arguments])
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert words in line


def test_a_model_that_does_not_fit_leaves_no_folder(place: Path) -> None:
    (place / "home" / "odd_nets.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(99, 2)\n")
    file = place / "home" / "my_task.toml"
    file.write_text(GOOD.replace('"mlp"\nhidden = [4]', '"odd_nets:make"'))
    done = CliRunner().invoke(app, ["run", str(file), "--out", str(place / "out")])
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert "the model fails on 2 samples of shape (3,)" in line
    assert not (place / "out").exists()


def test_a_file_that_is_not_there() -> None:
    done = CliRunner().invoke(app, ["run", "nowhere.toml"])
    assert done.exit_code == 2
    assert "cannot read the task file" in done.stderr
    assert "nowhere.toml: No such file" in done.stderr


def test_a_csv_file_is_run_from_the_command_line(place: Path) -> None:
    rows = [f"u{number % 6},{number % 7},{number % 2},{'ab'[number % 2]}" for number in range(60)]
    (place / "home" / "rooms.csv").write_text("\n".join(["who,x,y,kind", *rows]))
    data = 'kind = "csv"\npath = "rooms.csv"\nuser = "who"\nlabel = "kind"'
    text = GOOD.replace('kind = "npz"\npath = "data/tiny.npz"\nuser = "who"', data)
    (place / "home" / "my_task.toml").write_text(text)
    done = cli(place / "home", "run", "my_task.toml", "--method", "fedavg+1t", "--out", "r")
    assert done.returncode == 0, done.stderr
    (place / "home" / "my_task.toml").write_text(text.replace('label = "kind"', 'label = "kid"'))
    done = cli(place / "home", "run", "my_task.toml", "--out", "r2")
    assert (done.returncode, "did you mean kind" in done.stderr) == (2, True)
