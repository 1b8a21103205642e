"""From a folder of `.npz` files, one per client, to a task."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples, check_samples, check_shapes
from fedbalancer.data.clients import joined
from fedbalancer.data.own.arrays import pair
from fedbalancer.data.own.build import assemble
from fedbalancer.data.own.models import Model
from fedbalancer.data.own.npz import NpzFile
from fedbalancer.data.own.options import OwnOptions, divided
from fedbalancer.data.own.split import check_options, held_out_users, split_notes
from fedbalancer.data.tasks.task import Task

TEST_FILE = "test.npz"
OPTIONS = ("test_share", "seed")


def from_folder(path: Path | str, *, model: Model, classes: int | None = None, **options: Unpack[OwnOptions]) -> Task:
    """See `Task.from_folder`."""
    split, settings = divided(options, OPTIONS)
    folder = Path(path)
    files = sorted(folder.glob("*.npz"))
    if not folder.is_dir():
        raise BadData(f"there is no folder {folder}")
    has_test = (folder / TEST_FILE).is_file()
    check_options(split, has_users=True, has_test=has_test)
    users = {file.stem: read_client(file) for file in files if file.name != TEST_FILE}
    if not users:
        raise BadData(f"{folder} has no clients: it must hold one .npz file per client, with arrays x and y")
    places = {user: f" ({user}.npz)" for user in users}
    check_shapes({f"client {user!r}{places[user]}": samples for user, samples in users.items()})
    held_out = () if has_test else held_out_users(list(users), split, str(folder))
    if has_test:
        test = read_client(folder / TEST_FILE)
    else:
        _, _, *both = joined({user: users[user] for user in held_out})
        test = (both[0], both[1])
    clients = {user: samples for user, samples in users.items() if user not in set(held_out)}
    notes = {"source": str(folder), **split_notes(split, held_out, has_users=True, has_test=has_test)}
    settings.setdefault("name", folder.resolve().name)
    return assemble(clients, test, model, classes, settings, notes, places)


def read_client(file: Path) -> Samples:
    """The arrays x and y of one file, checked."""
    arrays = NpzFile(file)
    samples = pair((arrays["x"], arrays["y"]), str(file))
    check_samples(samples, str(file), None)
    return samples
