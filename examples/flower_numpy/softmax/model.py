"""Softmax regression on three clusters of points, in NumPy."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
CLASSES, FEATURES = 3, 8
PEOPLE = 99
"""Number of the client whose points are the test data."""


def points(part: int) -> tuple[Array, NDArray[np.int64]]:
    """Return the points of one client. All clients share the clusters; their proportions differ."""
    centres = np.random.default_rng(0).normal(0, 1.5, (CLASSES, FEATURES))
    rng = np.random.default_rng(part + 1)
    labels = rng.choice(CLASSES, size=120 + 40 * (part % 5), p=rng.dirichlet([2.0] * CLASSES))
    return centres[labels] + rng.normal(0, 1.5, (len(labels), FEATURES)), labels


def probabilities(weights: Array, bias: Array, x: Array) -> Array:
    scores = x @ weights + bias
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def losses(weights: Array, bias: Array, x: Array, y: NDArray[np.int64]) -> Array:
    """Return the cross-entropy of every sample."""
    return -np.log(probabilities(weights, bias, x)[np.arange(len(y)), y] + 1e-12)


def step(weights: Array, bias: Array, x: Array, y: NDArray[np.int64], learning_rate: float) -> None:
    """Take one step of gradient descent, in place."""
    error = (probabilities(weights, bias, x) - np.eye(CLASSES)[y]) / len(y)
    weights -= learning_rate * x.T @ error
    bias -= learning_rate * error.sum(axis=0)
