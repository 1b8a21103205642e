"""Where torch computes."""

from __future__ import annotations

from fedbalancer.core.errors import BadSetting


def checked_device(name: str) -> str:
    """The name again, if this torch has such a device here: `cpu`, `cuda` or `cuda:1`, `mps`.

    >>> checked_device("cpu")
    'cpu'
    """
    present = ["cpu"] if name == "cpu" else _present()  # the others take a while to find
    if name not in present:
        raise BadSetting(f"device is {name!r}, but torch has only {', '.join(present)} here")
    return name


def _present() -> list[str]:
    import torch

    cards = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    metal = ["mps"] if torch.backends.mps.is_available() else []
    return ["cpu", *(["cuda"] if cards else []), *cards, *metal]
