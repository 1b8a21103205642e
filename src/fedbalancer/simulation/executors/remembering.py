"""Work that runs of one comparison have in common is done once.

Methods that begin alike train the same clients from the same weights until their ways part: all settings of
FedBalancer's ratio control are one run until it first moves, and FedAvg+2T, Prox+2T without a proximal term and
waiting for all are one run for as long as nobody is late. Training is a pure function, so what one run has computed is
the other's result, to the byte.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedbalancer.core.interfaces import Executor
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, Layout, TrainResult, Weights

MOST_BYTES = 4 * 2**30
"""What a folder of results may take; beyond it those that were not asked for longest go."""
_SHARE_OF_ONE_ROUND = 1 / 16
"""A round whose results are a larger part of the folder is not kept: it would drive out what others need."""

MOST_ALONE = 5000
"""Results in a row that nobody had before: a run that has gone its own way for so long (500 rounds of ten clients)
leaves no more of them. A long run would fill the folder with files that nobody asks for, minutes of work to remove."""

_TRAINED = tuple(field.name for field in fields(TrainResult) if field.name != "client")
"""What is kept of a training."""

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")


class RememberingExecutor:
    """An executor that looks in `folder` before it works, and leaves its results there for other runs and processes.
    `about` says what else the results depend on: the task, and how it is trained."""

    def __init__(self, executor: Executor, folder: Path, about: str, most_bytes: int = MOST_BYTES) -> None:
        self._executor = executor
        self._results = ResultFiles(folder, most_bytes)
        self._about = about
        self._most_round_bytes = most_bytes * _SHARE_OF_ONE_ROUND
        self._alone = 0

    @property
    def layout(self) -> Layout:
        return self._executor.layout

    def initial_weights(self, seed: int) -> Weights:
        self._alone = 0  # another run begins
        return self._executor.initial_weights(seed)

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[TrainResult]:
        if weights.nbytes * len(works) > self._most_round_bytes:
            return self._executor.train(weights, works)
        return self._each(
            [self._key("train", weights, _TRAINED, *_values(work)) for work in works],
            lambda places: self._executor.train(weights, [works[place] for place in places]),
            lambda trained: {name: found for name in _TRAINED if (found := getattr(trained, name)) is not None},
            lambda place, arrays: TrainResult(works[place].client, **arrays),
        )

    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]:
        return self._each(
            [self._key("losses", weights, client) for client in clients],
            lambda places: self._executor.losses(weights, [clients[place] for place in places]),
            lambda losses: {"losses": losses},
            lambda place, arrays: arrays["losses"],
        )

    def evaluate(self, weights: Weights) -> Evaluation:
        (found,) = self._each(
            [self._key("evaluate", weights)],
            lambda places: [self._executor.evaluate(weights)],
            lambda e: {"values": np.array([e.accuracy, e.loss]), "samples": np.array([e.samples])},
            lambda place, arrays: Evaluation(*arrays["values"].tolist(), *arrays["samples"].tolist()),
        )
        return found

    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]:
        return self._executor.evaluate_clients(weights, clients)  # once in a run, of its last model

    def close(self) -> None:
        self._executor.close()

    def _each(
        self,
        keys: Sequence[str],
        work: Callable[[list[int]], Sequence[T]],
        to_arrays: Callable[[T], Arrays],
        from_arrays: Callable[[int, Arrays], T],
    ) -> list[T]:
        """The result for every key: one that is there already, or what `work` makes of the places that have none."""
        found = [self._results.get(key) for key in keys]
        missing = [place for place, arrays in enumerate(found) if arrays is None]
        made = dict(zip(missing, work(missing), strict=True)) if missing else {}
        self._alone = self._alone + len(made) if len(made) == len(keys) else 0
        if self._alone <= MOST_ALONE:
            for place, result in made.items():
                self._results.put(keys[place], to_arrays(result))
        return [made[place] if arrays is None else from_arrays(place, arrays) for place, arrays in enumerate(found)]

    def _key(self, kind: str, weights: Weights, *parts: object) -> str:
        digest = hashlib.blake2b(weights.tobytes(), digest_size=20)
        digest.update(repr((kind, self._about, parts)).encode())
        return digest.hexdigest()


def _values(work: ClientWork) -> list[object]:
    """All fields of a work, such that the texts of different ones differ."""
    values = [getattr(work, field.name) for field in fields(work)]
    return [(v.dtype.str, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values]


class ResultFiles:
    """Named arrays in files, for any number of processes at a time. One that is damaged or gone is as if it had never
    been: whoever asks works again. Nothing waits for the disk, because nothing is lost with it."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._unseen_bytes = 0

    def get(self, key: str) -> Arrays | None:
        path = self._folder / key
        try:
            content = path.read_bytes()
            os.utime(path)  # it is of use: let others go first
        except OSError:
            return None
        data, check = memoryview(content)[:-4], content[-4:]
        if zlib.crc32(data).to_bytes(4, "little") != check:
            return None
        try:
            return dict(load(bytes(data)))
        except SafetensorError:
            return None

    def put(self, key: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        temporary = self._folder / f".{key}.{os.getpid()}"
        try:
            self._make_room(len(data))
            temporary.write_bytes(data + zlib.crc32(data).to_bytes(4, "little"))
            os.replace(temporary, self._folder / key)
        except OSError:  # no room on the disk, or somebody has removed the folder: then nothing is shared
            temporary.unlink(missing_ok=True)

    def _make_room(self, wanted_bytes: int) -> None:
        """Remove the oldest files if there are too many bytes, which is looked at now and then only."""
        self._unseen_bytes += wanted_bytes
        if self._unseen_bytes < self._most_bytes * _SHARE_OF_ONE_ROUND:
            return
        self._unseen_bytes, files = 0, []
        for entry in os.scandir(self._folder):
            try:
                about = entry.stat()
            except FileNotFoundError:
                continue
            files.append((about.st_mtime_ns, about.st_size, entry.path))
        excess = sum(size for _, size, _ in files) + wanted_bytes - self._most_bytes
        for _, size, path in sorted(files):
            if excess <= 0:
                return
            Path(path).unlink(missing_ok=True)
            excess -= size
