"""Which model is evaluated and handed out."""

from fedbalancer.server.deliver.averaged import AveragedModel
from fedbalancer.server.deliver.last import LastModel

__all__ = ["AveragedModel", "LastModel"]
