"""A client: its recordings and the network. fedbalancer selects samples, trains and keeps the deadline."""

from dataclasses import dataclass

from flwr.app import Context

from fedbalancer.flower import client_app
from gestures.task import network, recordings


@dataclass(frozen=True)
class Phone:
    """A device that is slower than this machine: seconds per batch, download and upload."""

    batch_s: float
    download_s: float = 0.0
    upload_s: float = 0.0


def data(context: Context):
    """Return this client's recordings; the node configuration names the person."""
    config = context.node_config
    return recordings(int(config["person"]), int(config.get("recordings", 200)))


def phone(context: Context, round: int) -> Phone | None:
    """Slow the client down to `batch-s` seconds per batch, for this example only."""
    batch_s = context.node_config.get("batch-s")
    return None if batch_s is None else Phone(float(batch_s))


app = client_app(model=network, data=data, hold=phone, threads=1)
