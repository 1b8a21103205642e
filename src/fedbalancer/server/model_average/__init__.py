"""Which model is evaluated and handed out."""

from fedbalancer.server.model_average.averaged import AveragedModel
from fedbalancer.server.model_average.last import LastModel

__all__ = ["AveragedModel", "LastModel"]
