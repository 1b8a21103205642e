"""A cache of training results that the runs of a comparison share.

Methods that begin alike train the same clients from the same weights until they first differ. For example, all settings
of FedBalancer's ratio control are the same run until a ratio first changes. FedAvg+2T, Prox+2T without a proximal term
and waiting for all are the same run while nobody is late. Training is a pure function, so a cached result has the same
bytes as a new one.
"""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedbalancer.core.interfaces import Executor
from fedbalancer.core.types import ClientWork, DivergedTraining, Evaluation, FloatArray, Layout, TrainResult, Weights

MAX_BYTES = 4 * 2**30
"""Maximum size of a cache folder; beyond it the least recently used results are removed."""
_MAX_ROUND_SHARE = 1 / 16
"""A round whose results would fill a larger share of the folder is not cached."""

MAX_MISSES = 5000
"""Consecutive misses (500 rounds of ten clients) after which a run caches nothing more.

Otherwise a long run would fill the folder with files that no other run needs.
"""

LEAST_S = 0.003
"""Results that took less time to compute, on average over a call, are not cached: a file costs as much.

Otherwise a comparison of small models would write hundreds of thousands of files.
"""

_TRAIN_FIELDS = tuple(field.name for field in fields(TrainResult) if field.name not in ("client", "state", "arrays"))

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")


class CachingExecutor:
    """Looks up results in a folder before it computes them, and stores new ones for other runs and processes.

    Args:
        executor: Computes the results that are not cached.
        folder: The cache folder.
        about: What the results depend on besides weights and work: the task and how it is trained.
        max_bytes: Maximum size of the folder.
        least_s: Fewest seconds that a cached result took to compute.
    """

    def __init__(
        self, executor: Executor, folder: Path, about: str, max_bytes: int = MAX_BYTES, least_s: float = LEAST_S
    ) -> None:
        self._executor = executor
        self._least_s = least_s
        self._results = ResultFiles(folder, max_bytes)
        self._about = about
        self._max_round_bytes = max_bytes * _MAX_ROUND_SHARE
        self._misses = 0

    @property
    def layout(self) -> Layout:
        """Names and shapes of the model's parameters."""
        return self._executor.layout

    def initial_weights(self, seed: int) -> Weights:
        """Return the initial model of a seed; this begins another run."""
        self._misses = 0
        return self._executor.initial_weights(seed)

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> Sequence[TrainResult | DivergedTraining]:
        """Train every client from these weights."""
        custom = any(
            work.train is not None or work.part is not None or work.training.keeps_state for work in works
        )  # their state differs
        if custom or weights.nbytes * len(works) > self._max_round_bytes:
            return self._executor.train(weights, works)
        return self._get_or_compute(
            [self._key("train", weights, _TRAIN_FIELDS, *_values(work)) for work in works],
            lambda places: self._executor.train(weights, [works[place] for place in places]),
            lambda result: {name: array for name in _TRAIN_FIELDS if (array := getattr(result, name)) is not None},
            lambda place, arrays: TrainResult(works[place].client, *map(arrays.get, _TRAIN_FIELDS)),  # type: ignore[arg-type]
        )

    def train_each(self, weights: Weights, works: Sequence[ClientWork]) -> Iterator[TrainResult | DivergedTraining]:
        """Train clients one by one; not cached, because a round that needs it is too large."""
        return self._executor.train_each(weights, works)

    def losses(self, weights: Weights, clients: Sequence[str]) -> Sequence[FloatArray | DivergedTraining]:
        """Return the loss of every sample of every client."""
        return self._get_or_compute(
            [self._key("losses", weights, client) for client in clients],
            lambda places: self._executor.losses(weights, [clients[place] for place in places]),
            lambda losses: {"losses": losses},
            lambda place, arrays: arrays["losses"],
        )

    def evaluate(self, weights: Weights) -> Evaluation:
        """Evaluate a model on the test data."""
        (evaluation,) = self._get_or_compute(
            [self._key("evaluate", weights)],
            lambda places: [self._executor.evaluate(weights)],
            _evaluation_arrays,
            lambda place, arrays: _evaluation_of(arrays),
        )
        assert isinstance(evaluation, Evaluation)
        return evaluation

    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]:
        """Evaluate a model on the data of every client; not cached, because few runs have the same late models."""
        return self._executor.evaluate_clients(weights, clients)

    def close(self) -> None:
        """Close the wrapped executor."""
        self._executor.close()

    def _get_or_compute(
        self,
        keys: Sequence[str],
        compute: Callable[[list[int]], Sequence[T | DivergedTraining]],
        to_arrays: Callable[[T], Arrays],
        from_arrays: Callable[[int, Arrays], T],
    ) -> list[T | DivergedTraining]:
        """Return the result of every key: the cached one, or what `compute` returns for the missing places.

        A training that diverged is not cached.
        """
        cached = [self._results.get(key) for key in keys]
        missing = [place for place, arrays in enumerate(cached) if arrays is None]
        started = time.perf_counter()
        computed = dict(zip(missing, compute(missing), strict=True)) if missing else {}
        seconds = time.perf_counter() - started
        self._misses = self._misses + len(computed) if len(computed) == len(keys) else 0
        if self._misses <= MAX_MISSES and seconds >= self._least_s * len(computed):
            for place, result in computed.items():
                if not isinstance(result, DivergedTraining):
                    self._results.put(keys[place], to_arrays(result))
        return [
            computed[place] if arrays is None else from_arrays(place, arrays) for place, arrays in enumerate(cached)
        ]

    def _key(self, kind: str, weights: Weights, *parts: object) -> str:
        digest = hashlib.blake2b(weights.tobytes(), digest_size=20)
        digest.update(repr((kind, self._about, parts)).encode())
        return digest.hexdigest()


_METRIC = "metric."
"""Prefix of the names of arrays with further metrics."""


def _evaluation_arrays(evaluation: Evaluation) -> Arrays:
    metrics = {f"{_METRIC}{name}": np.array([value]) for name, value in evaluation.metrics.items()}
    values = np.array([evaluation.accuracy, evaluation.loss])
    return {"values": values, "samples": np.array([evaluation.samples]), **metrics}


def _evaluation_of(arrays: Arrays) -> Evaluation:
    metrics = {
        name.removeprefix(_METRIC): float(array[0]) for name, array in arrays.items() if name.startswith(_METRIC)
    }
    accuracy, loss = arrays["values"].tolist()
    return Evaluation(accuracy, loss, int(arrays["samples"][0]), metrics)


def _values(work: ClientWork) -> list[object]:
    """Return all fields of a work, in a form whose `repr` differs for different works."""
    values = [getattr(work, field.name) for field in fields(work)]
    return [(v.dtype.str, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values]


class ResultFiles:
    """Named arrays in files, for any number of processes at once.

    A damaged or removed file counts as missing. Files are not synced to disk, because a lost one is computed again.

    Args:
        folder: The folder.
        max_bytes: Maximum size of the folder.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._unseen_bytes = 0

    def get(self, key: str) -> Arrays | None:
        """Return the arrays of a key; None if there are none."""
        path = self._folder / key
        try:
            content = path.read_bytes()
            os.utime(path)  # least recently used files are removed first
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
        """Store the arrays of a key; does nothing if the disk is full or the folder was removed."""
        data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        temporary = self._folder / f".{key}.{os.getpid()}"
        try:
            self._make_room(len(data))
            temporary.write_bytes(data + zlib.crc32(data).to_bytes(4, "little"))
            os.replace(temporary, self._folder / key)
        except OSError:
            temporary.unlink(missing_ok=True)

    def _make_room(self, wanted_bytes: int) -> None:
        """Remove the oldest files if the folder is too large, which is checked only now and then."""
        self._unseen_bytes += wanted_bytes
        if self._unseen_bytes < self._max_bytes * _MAX_ROUND_SHARE:
            return
        self._unseen_bytes, files = 0, []
        for entry in os.scandir(self._folder):
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            files.append((status.st_mtime_ns, status.st_size, entry.path))
        excess = sum(size for _, size, _ in files) + wanted_bytes - self._max_bytes
        for _, size, path in sorted(files):
            if excess <= 0:
                return
            Path(path).unlink(missing_ok=True)
            excess -= size
