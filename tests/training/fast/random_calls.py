"""Calls every kernel with random shapes, strides, places in memory and options; `test_sanitizers.py` runs it in a
process whose memory is watched.

python random_calls.py SEED COUNT [overrun]: with the last, there is one more call, that must not go unnoticed.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from torch import Tensor, nn

from fedbalancer.training.fast import chain, conv, dense, kernels, lstm, row
from fedbalancer.training.fast import words as words_module

_kept: list[Tensor] = []


def exact_scratch(floats: int) -> int:
    """Memory of just this size for each call, without a number in it: what is read before it is written shows."""
    _kept[:] = [torch.full((floats,), torch.nan)]
    return _kept[0].data_ptr()


def anywhere(rng: random.Random, *shape: int) -> Tensor:
    """A contiguous tensor that begins anywhere in a vector and ends where its memory ends."""
    more = rng.randrange(4)
    return torch.randn(more + torch.Size(shape).numel())[more:].view(shape)


def strided(rng: random.Random, *shape: int) -> Tensor:
    """The same with any strides: sides in another order, steps over gaps, one value for a whole side."""
    order = rng.sample(range(len(shape)), len(shape))
    gaps = [rng.choice([1, 1, 1, 2, 3]) for _ in shape]
    whole = anywhere(rng, *(shape[side] * gaps[side] for side in order))
    cut = whole[tuple(slice(None, None, gaps[side]) for side in order)]
    tensor = cut.permute(*(order.index(side) for side in range(len(shape))))
    if rng.random() < 0.15:
        side = rng.randrange(len(shape))
        tensor = tensor.narrow(side, 0, min(1, shape[side])).expand(shape)
    return tensor


def call_conv(rng: random.Random) -> list[Tensor]:
    """By autograd and as a link of a chain."""
    flat, wide = rng.random() < 0.4, rng.random() < 0.5
    sizes = rng.choice([(3, 3), (5, 5), (rng.randint(1, 6), rng.randint(1, 6))])
    rows, columns = (1, rng.randint(1, 18)) if flat else sizes
    top, bottom, left, right = (0 if flat and side < 2 else rng.randrange(4) for side in range(4))
    pool = (1 if flat else rng.randint(1, 4), rng.randint(1, 5))
    height = 1 if flat else max(1, rows + pool[0] - 1 - top - bottom) + rng.randrange(12)
    width = max(1, columns + pool[1] - 1 - left - right) + rng.randrange(40 if flat else 12)
    channels = rng.choice([16, 24, 32, 48]) if wide else rng.randint(1, 13)
    filters = rng.choice([16, 17, 32, 40, 65]) if wide else rng.randint(1, 40)
    shape = conv.Shape((top, bottom, left, right), pool, rng.random() < 0.5, rng.random() < 0.7)
    make: Any = nn.Conv1d if flat else nn.Conv2d
    layer = make(channels, filters, columns if flat else (rows, columns), bias=rng.random() < 0.8)
    sides = (width,) if flat else (height, width)
    block, x = conv.ConvBlock(layer, shape), strided(rng, rng.randint(0, 5), channels, *sides)
    x = x.detach().requires_grad_(rng.random() < 0.7)
    outputs = block(x)
    g = strided(rng, *outputs.shape)
    wanted = [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
    made = torch.autograd.grad(outputs, wanted, g)
    link = chain._Convolution(block)
    with torch.no_grad():
        again = [link.forward(x).clone(), link.backward(g, wanted=rng.random() < 0.7)]
    return [outputs, *made, *(tensor for tensor in again if tensor is not None)]


def call_conv_norm(rng: random.Random) -> list[Tensor]:
    """By tiles, or by the covariance of small windows; by autograd, without gradients and as a link of a chain."""
    tiled = rng.random() < 0.6
    rows, columns = (3, 3) if tiled else (rng.randint(1, 4), rng.randint(1, 4))
    channels = 16 * rng.randint(1, 3) if tiled else rng.randint(1, 64 // (rows * columns))
    filters = rng.randint(16, 70) if tiled else rng.randint(1, 40)
    pool = (rng.choice([1, 2, 4]), rng.choice([2, 4])) if tiled else (rng.randint(1, 3), rng.randint(1, 4))
    layer = nn.Conv2d(channels, filters, (rows, columns), bias=rng.random() < 0.5)
    norm = nn.BatchNorm2d(filters, track_running_stats=False)
    norm.weight.data.normal_()
    x = strided(rng, rng.randint(1, 4), channels, rng.randint(8, 17), rng.randint(8, 17))
    shape = conv.Shape(
        (rng.randrange(3), rng.randrange(3), rng.randrange(3), rng.randrange(3)), pool, True, rng.random() < 0.7
    )
    block = conv.ConvNormBlock(layer, norm, shape)
    try:
        call = block.call_for(x.shape)
    except ValueError:
        return []
    x = x.detach().requires_grad_(call.way != conv.BY_COVARIANCE and rng.random() < 0.7)
    outputs = block(x)
    g = strided(rng, *outputs.shape)
    wanted = [tensor for tensor in (x, layer.weight, *norm.parameters()) if tensor.requires_grad]
    made = torch.autograd.grad(outputs, wanted, g)
    link = chain._NormedConvolution(block)
    with torch.no_grad():
        again = [block(x), link.forward(x).clone(), link.backward(g, wanted=call.way != conv.BY_COVARIANCE)]
    return [outputs, *made, *(tensor for tensor in again if tensor is not None)]


def call_words(rng: random.Random) -> list[Tensor]:
    library: Any = words_module.load_kernel()
    rows, words, width = rng.randint(1, 40), rng.randint(1, 300), library.words_lanes() * rng.randint(1, 5)
    w, b = anywhere(rng, words, width), rng.choice([None, anywhere(rng, words)])
    kind = words_module.CompiledScores(w, b, library)
    losses = kind.losses(anywhere(rng, rows, width), torch.randint(words, (rows,)))
    kind.weigh(torch.rand(rows))
    made = [losses, kind.input_gradient(), kind.products()]
    kind.step(0.1)
    return [*made, w]


def call_dense(rng: random.Random) -> list[Tensor]:
    kind = dense.CompiledProducts(dense.load_kernel())
    rows, width, out = rng.randint(1, 34), rng.choice([1, 7, 64, rng.randint(1, 1100)]), rng.randint(1, 80)
    x, z, y, g = (anywhere(rng, rows, side) for side in (width, width, out, out))
    w, base, to = (anywhere(rng, out, width) for _ in range(3))
    g *= torch.rand(out) > rng.choice([0.0, 0.4, 1.0])  # units that rest
    kind.dots(y, x, w)
    kind.mix(z, g, w)
    rank = rng.randint(0, rows)
    kind.outer(to, rng.choice([None, w, to]), g[:rank], -0.1, x[:rank])
    kind.step(rng.choice([None, z]), rng.choice([to, w]), w, g, -0.1, x, rng.choice([None, (base, 0.3)]))
    return [x, y, z, w, to]


def call_lstm(rng: random.Random) -> list[Tensor]:
    inputs, hidden, layers = rng.randint(1, 40), rng.randint(1, 70), rng.randint(1, 2)
    layer = lstm.FastLSTM(nn.LSTM(inputs, hidden, layers, bias=rng.random() < 0.7, batch_first=True))
    x = strided(rng, rng.randint(1, 30), rng.randint(1, 12), inputs).detach().requires_grad_(rng.random() < 0.7)
    states, (last, cells) = layer(x)
    with torch.no_grad():
        same = layer(x)[0]
    towards = [(part, strided(rng, *part.shape)) for part in (states, last, cells) if rng.random() < 0.6]
    if towards:
        torch.autograd.backward(*zip(*towards, strict=True))
    grads = [tensor.grad for tensor in (x, *layer.parameters()) if tensor.grad is not None]
    return [states, last, cells, same, *grads]


def call_row(rng: random.Random) -> list[Tensor]:
    """Steps of small rows: convolutions of either kind or none, dense layers, batches of several sizes."""
    flat, count, channels = rng.random() < 0.5, rng.randint(0, 2), rng.randint(1, 9)
    sides = (rng.randint(8, 40),) if flat else (rng.randint(8, 14), rng.randint(8, 14))
    layers: list[Any] = []
    x, width = torch.empty(1, channels, *sides), channels
    for _ in range(count):
        window, filters = rng.randint(1, 5), rng.choice([rng.randint(1, 20), 16, 32])
        make: Any = nn.Conv1d if flat else nn.Conv2d
        pads = (0, 0, 2, 2) if flat else (2, 2, 2, 2)
        shape = conv.Shape(pads, (1, 2) if flat else (2, 2), rng.random() < 0.5, rng.random() < 0.7)
        layers.append(conv.ConvBlock(make(width, filters, window, bias=rng.random() < 0.7), shape))
        x, width = layers[-1](x).detach(), filters
    layers.append(nn.Flatten())
    width = x[0].numel()
    for _ in range(rng.randint(0, 2)):
        out = rng.randint(1, 40)
        layers += [nn.Linear(width, out, bias=rng.random() < 0.7), *([nn.ReLU()] if rng.random() < 0.7 else [])]
        width = out
    layers.append(nn.Linear(width, rng.randint(1, 12), bias=rng.random() < 0.7))
    made = row.make_row(layers, torch.empty(3, channels, *sides))
    assert made is not None
    losses: list[Tensor] = []
    for mu in (0.0, 0.5):
        made.begin(0.01, mu)
        for rows in (rng.randint(1, 40), rng.randint(1, 10)):
            labels = torch.randint(made.classes, (rows,))
            losses += [made.step(anywhere(rng, rows, channels, *sides), labels)]  # type: ignore[list-item]
            assert made.step(anywhere(rng, rows, channels, *sides), labels + made.classes) is None
    return [*losses, *(tensor.detach() for layer in layers for tensor in layer.parameters())]


def overrun() -> None:
    """One row more than there is memory for: past the wrappers, which refuse it."""
    y, x, w = torch.zeros(2, 5), torch.zeros(2, 9), torch.zeros(5, 9)
    library: Any = dense.load_kernel()
    library.dense_dots(y.data_ptr(), x.data_ptr(), w.data_ptr(), 3, 9, 5, exact_scratch(10_000))


def main(seed: int, count: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        for call in (call_conv, call_conv_norm, call_dense, call_lstm, call_words, call_row):
            torch.manual_seed(rng.randrange(2**31))
            state = rng.getstate()
            for tensor in call(rng):
                assert tensor.isfinite().all(), f"{call.__name__} from {state}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in ("conv", "dense", "lstm", "words", "row"):
        assert kernels.load(name) is not None, kernels.why_not(name)
    for module in (conv, dense, lstm, words_module):
        module.scratch = exact_scratch  # type: ignore[attr-defined]
    main(int(sys.argv[1]), int(sys.argv[2]))
    print("done", flush=True)
    if "overrun" in sys.argv:
        overrun()
