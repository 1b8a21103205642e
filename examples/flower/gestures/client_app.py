"""A client: its recordings and the network. Samples, epochs and the deadline are FedBalancer's business."""

from dataclasses import dataclass

from flwr.app import Context

from fedbalancer.flower import client_app
from gestures.task import network, recordings


@dataclass(frozen=True)
class Phone:
    """A device that is slower than this machine: how long it takes for a batch, and to receive and send."""

    batch_s: float
    download_s: float = 0.0
    upload_s: float = 0.0


def data(context: Context):
    """All that this client has; its node's configuration says who it is."""
    config = context.node_config
    return recordings(int(config["person"]), int(config.get("recordings", 200)))


def phone(context: Context, round: int) -> Phone | None:
    """For the example only: `batch-s` in the node's configuration slows a client down to that pace."""
    batch_s = context.node_config.get("batch-s")
    return None if batch_s is None else Phone(float(batch_s))


app = client_app(model=network, data=data, hold=phone, threads=1)
