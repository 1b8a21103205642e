"""Train a ResNet-18 with group norms on images of CIFAR-10's shape.

Without `--data` the images are synthetic, so nothing is downloaded. `--data cifar-10-batches-bin` reads the unpacked
binary version of CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html).
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor, nn

import fedbalancer as fb

CLASSES, PIXELS = 10, (3, 32, 32)


def conv(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    """Return a convolution with its norm. Batch norms need large batches and similar clients; group norms do not."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.GroupNorm(min(8, outputs), outputs)
    )


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv(inputs, outputs, 3, stride), conv(outputs, outputs, 3, 1)
        self.shortcut = nn.Identity() if inputs == outputs and stride == 1 else conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.second(nn.functional.relu(self.first(x))) + self.shortcut(x))


def make_resnet(width: int = 64, blocks: int = 2) -> nn.Module:
    """Return a ResNet. Width 64 and two blocks per stage make a ResNet-18 with 11.2 million parameters."""
    layers, inputs = [conv(PIXELS[0], width, 3, 1), nn.ReLU()], width
    for stage in range(4):
        outputs = width * 2**stage
        layers += [Block(inputs, outputs, 2 if stage else 1)]
        layers += [Block(outputs, outputs, 1) for _ in range(blocks - 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def make_images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images. Each class has its own pattern of coarse squares."""
    rng, patterns = np.random.default_rng(seed), np.random.default_rng(0).random((CLASSES, 3, 4, 4))
    labels = rng.integers(0, CLASSES, count)
    images = np.kron(patterns[labels], np.ones((8, 8))) + rng.normal(0, 0.5, (count, *PIXELS))
    return images.astype(np.float32), labels


def read_cifar(files: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    rows = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 1 + 3072) for file in files])
    return (rows[:, 1:].reshape(-1, *PIXELS) / np.float32(255)).astype(np.float32), rows[:, 0].astype(np.int64)


def make_task(data: Path | None, clients: int, images: int, width: int) -> fb.Task:
    if data is None:
        train, test = make_images(images, 1), make_images(max(images // 5, 1), 2)
    else:
        train, test = read_cifar(sorted(data.glob("data_batch_*.bin"))), read_cifar([data / "test_batch.bin"])
    return fb.Task.from_arrays(
        *train, test=test, partition="dirichlet", alpha=0.5, clients=clients, model=partial(make_resnet, width),
        name="resnet", clients_per_round=min(10, clients), batch_size=20, epochs=1, learning_rate=0.1, eval_every=1,
        latency="flops",
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    task = make_task(options.data, options.clients, options.images, options.width)
    result = fb.run(task, "fedavg+1t", rounds=options.rounds)
    print(f"{len(result.weights):,} parameters; {options.rounds} rounds, accuracy {result.accuracy:.3f}")
