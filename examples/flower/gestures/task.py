"""Classify three arm gestures from 3 channels x 32 steps.

The data are generated. In your own app, `recordings` reads what the device has recorded.
"""

import numpy as np
import torch
from torch import nn

GESTURES, CHANNELS, STEPS = 3, 3, 32


def recordings(person: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return recordings of one person, with an individual speed and one gesture more frequent than the others."""
    rng = np.random.default_rng(person)
    often = np.where(np.arange(GESTURES) == person % GESTURES, 0.6, 0.2)
    labels = rng.choice(GESTURES, size=count, p=often)
    pace, phase = rng.uniform(0.8, 1.2), rng.uniform(0, 1, (count, 1, 1))
    time = np.linspace(0, 2 * np.pi, STEPS)
    turns = (labels[:, None, None] + 1) * np.linspace(0.5, 1.0, CHANNELS)[:, None]
    signals = np.sin(pace * turns * time + phase) + rng.normal(0, 2.5, (count, CHANNELS, STEPS))
    return signals.astype(np.float32), labels


def network() -> nn.Module:
    """Return a small convolutional network."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(CHANNELS, 16, 5), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(16 * 14, GESTURES)
    )


def scores(model: nn.Module, signals: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return accuracy and mean loss."""
    with torch.no_grad():
        outputs, wanted = model(torch.from_numpy(signals)), torch.from_numpy(labels)
        loss = nn.functional.cross_entropy(outputs, wanted)
        return {"accuracy": float((outputs.argmax(1) == wanted).float().mean()), "loss": float(loss)}
