"""LSTM layers, each as one call of the kernel in `lstm.c`."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from fedbalancer.training.fast import kernels
from fedbalancer.training.fast.pointers import pointer, scratch, strided

State = tuple[Tensor, Tensor]


class FastLSTM(nn.Module):
    """An `nn.LSTM` that starts from a state of zeros.

    Calls with an initial state or other number types, or without a compiler, are left to the original layer. There are
    no second-order gradients.

    Args:
        lstm: The original layer, whose parameters and names are shared.

    >>> lstm = nn.LSTM(3, 5, num_layers=2, batch_first=True)
    >>> x = torch.ones(2, 7, 3)
    >>> torch.allclose(FastLSTM(lstm)(x)[0], lstm(x)[0], atol=1e-6)
    True
    """

    plain: nn.LSTM

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        for name, parameter in lstm.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in lstm.named_buffers(recurse=False):
            self.register_buffer(name, buffer, persistent=name in lstm.state_dict())
        self.__dict__["plain"] = lstm  # as a submodule, every parameter would have a second name

    @staticmethod
    def find_obstacle(lstm: nn.Module) -> str | None:
        """Return why this layer cannot be replaced; None if it can."""
        if type(lstm) is not nn.LSTM:
            return f"{type(lstm).__name__} is not torch.nn.LSTM itself"
        hooks = (lstm._forward_hooks, lstm._forward_pre_hooks, lstm._backward_hooks, lstm._backward_pre_hooks)
        reasons = {
            "batch_first is off": not lstm.batch_first,
            "it is bidirectional": lstm.bidirectional,
            "its states are projected (proj_size)": lstm.proj_size > 0,
            "it has dropout between layers": lstm.dropout > 0 and lstm.num_layers > 1,
            "it has hooks": any(hooks),
        }
        return next((reason for reason, holds in reasons.items() if holds), kernels.why_not("lstm"))

    def forward(self, x: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        """Return the last layer's states (batch, steps, hidden), and the last states and cells of all layers."""
        if hx is not None or not self._accepts(x):
            result: tuple[Tensor, State] = self.plain(x, hx)
            return result
        states, last = x.transpose(0, 1), []
        for layer in range(self.plain.num_layers):
            states, cells = self._layer(layer, states.contiguous())
            last.append((states[-1], cells))
        return states.transpose(0, 1), (torch.stack([h for h, _ in last]), torch.stack([c for _, c in last]))

    def _accepts(self, x: Any) -> bool:
        if not isinstance(x, Tensor) or x.ndim != 3 or x.numel() == 0 or x.shape[2] != self.plain.input_size:
            return False
        on_cpu = all(tensor.dtype == torch.float32 and tensor.is_cpu for tensor in (x, self.plain.weight_ih_l0))
        if not on_cpu or kernels.load("lstm") is None:
            return False
        # Padding units have weights of 0, and 0 times infinity is NaN, which would spread.
        return self._missing_units == 0 or bool(x.isfinite().all())

    @property
    def _missing_units(self) -> int:
        """Number of padding units that fill the hidden ones up to whole vectors."""
        return -self.plain.hidden_size % int(_kernel().lstm_width())

    def _layer(self, layer: int, x: Tensor) -> State:
        """Return the states of all steps (steps, batch, hidden) and the last cells."""
        hidden = self.plain.hidden_size
        w_x, w_h = getattr(self, f"weight_ih_l{layer}"), getattr(self, f"weight_hh_l{layer}")
        bias = w_x.new_zeros(4 * hidden)
        if self.plain.bias:
            bias = getattr(self, f"bias_ih_l{layer}") + getattr(self, f"bias_hh_l{layer}")
        more = self._missing_units
        if more:  # padding units stay 0 and have no gradients
            w_x = pad(w_x.view(4, hidden, -1), (0, 0, 0, more)).flatten(0, 1)
            w_h = pad(w_h.view(4, hidden, hidden), (0, more, 0, more)).flatten(0, 1)
            bias = pad(bias.view(4, hidden), (0, more)).flatten()
        tensors = (x, w_x.contiguous(), w_h.contiguous(), bias)
        learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        states, cells = _Layer.apply(*tensors) if learns else _forward(*tensors)  # type: ignore[no-untyped-call]
        return (states[:, :, :hidden], cells[-1, :, :hidden]) if more else (states, cells[-1])


class _Layer(torch.autograd.Function):
    """One layer: (steps, batch, inputs) to states (steps, batch, hidden) and last cells (1, batch, hidden).

    The number of hidden units is a multiple of the kernel's width.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor) -> State:
        gates = x.new_empty(len(x), x.shape[1], len(w_h))
        states, cells = _forward(x, w_x, w_h, bias, gates)
        ctx.save_for_backward(x, w_x, w_h, states, cells, gates)
        ctx.set_materialize_grads(False)
        return states, cells[-1:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor | None, d_cells: Tensor | None) -> tuple[Tensor | None, ...]:
        x, w_x, w_h, states, cells, gates = ctx.saved_tensors
        steps, batch, inputs = x.shape
        hidden, kernel = states.shape[2], _kernel()
        if d_states is not None and d_states.stride(2) != 1:
            d_states = d_states.contiguous()
        step, row = (0, 0) if d_states is None else d_states.stride()[:2]
        d_cells = torch.zeros_like(cells[0]) if d_cells is None else d_cells[0].contiguous().clone()
        wide = inputs + -inputs % kernel.lstm_width()
        d_x = x.new_empty(steps, batch, wide) if ctx.needs_input_grad[0] else None
        d_w_x, d_w_h, d_bias = x.new_empty(4 * hidden, wide), torch.empty_like(w_h), x.new_empty(4 * hidden)
        state, gate = (steps, batch, hidden), (steps, batch, 4 * hidden)
        kernel.lstm_backward(
            steps, batch, inputs, hidden, pointer(x, (steps, batch, inputs)), pointer(w_x, (4 * hidden, inputs)),
            pointer(w_h, (4 * hidden, hidden)), pointer(states, state), pointer(cells, state), pointer(gates, gate),
            None if d_states is None else strided(d_states, state), step, row, pointer(d_cells, (batch, hidden)),
            None if d_x is None else pointer(d_x, (steps, batch, wide)), pointer(d_w_x, (4 * hidden, wide)),
            pointer(d_w_h, (4 * hidden, hidden)), pointer(d_bias, (4 * hidden,)),
            scratch(kernel.lstm_backward_floats(batch, inputs, hidden)),
        )  # fmt: skip
        return None if d_x is None else d_x[:, :, :inputs], d_w_x[:, :inputs].contiguous(), d_w_h, d_bias


def _forward(x: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor, gates: Tensor | None = None) -> State:
    """Return the states of all steps, and the cells of all steps if `gates` are kept, else the last cells."""
    steps, batch, inputs = x.shape
    hidden, kernel = w_h.shape[1], _kernel()
    if hidden % kernel.lstm_width():
        raise ValueError(f"the kernel needs whole vectors of hidden units, not {hidden} units")
    states = x.new_empty(steps, batch, hidden)
    cells = x.new_empty(1 if gates is None else steps, batch, hidden)
    kernel.lstm_forward(
        steps, batch, inputs, hidden, pointer(x, (steps, batch, inputs)), pointer(w_x, (4 * hidden, inputs)),
        pointer(w_h, (4 * hidden, hidden)), pointer(bias, (4 * hidden,)), pointer(states, (steps, batch, hidden)),
        pointer(cells, (len(cells), batch, hidden)),
        None if gates is None else pointer(gates, (steps, batch, 4 * hidden)),
        scratch(kernel.lstm_forward_floats(batch, inputs, hidden, gates is not None)),
    )  # fmt: skip
    return states, cells


@cache
def _kernel() -> ctypes.CDLL:
    library = kernels.load("lstm")
    assert library is not None, kernels.why_not("lstm")
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "lstm_width": (number, []),
        "lstm_forward_floats": (number, [number] * 4),
        "lstm_backward_floats": (number, [number] * 3),
        "lstm_forward": (None, [number] * 4 + [pointer] * 8),
        "lstm_backward": (None, [number] * 4 + [pointer] * 7 + [number] * 2 + [pointer] * 6),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
