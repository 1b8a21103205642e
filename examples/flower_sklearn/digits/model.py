"""Handwritten digits with scikit-learn's SGDClassifier, which supports training by batches."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

CLASSES, FEATURES = 10, 64
CLIENTS = 6
"""Number of parts of the data. The last one is the test data."""


def part(number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return one client's share of the 1,797 digits that come with scikit-learn. Each client has two rare digits."""
    x, y = load_digits(return_X_y=True)
    mine = np.random.default_rng(0).permutation(len(y)) % CLIENTS == number
    rare = np.isin(y, [number, number + CLASSES // 2]) & (number != CLIENTS - 1)
    keep = mine & ~(rare & (np.arange(len(y)) % 4 > 0))
    return x[keep] / 16.0, y[keep]


def start() -> list[NDArray[np.float64]]:
    """Return the arrays of an untrained model: one row of weights per digit, and the biases."""
    return [np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)]


def classifier(arrays: Sequence[NDArray[np.float64]], learning_rate: float = 0.01) -> SGDClassifier:
    """Return a classifier with these weights, ready for `partial_fit`."""
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=learning_rate, shuffle=False)
    model.coef_, model.intercept_ = (np.array(array) for array in arrays)
    model.classes_ = np.arange(CLASSES)
    return model


def losses(model: SGDClassifier, x: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the log loss of every sample."""
    return -np.log(model.predict_proba(x)[np.arange(len(y)), y] + 1e-12)
