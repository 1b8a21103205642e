"""Model averages: which model is evaluated and saved. Clients always train from the last round's weights."""

from fedbalancer.server.model_average.averaged import AveragedModel
from fedbalancer.server.model_average.last import LastModel

__all__ = ["AveragedModel", "LastModel"]
