"""What goes on in a run, told to others while it goes on: TensorBoard, MLflow, Weights & Biases, or a sink of yours."""

from fedbalancer.tracking.names import check_sinks, open_sinks
from fedbalancer.tracking.sink import Sink, Tracks

__all__ = ["Sink", "Tracks", "check_sinks", "open_sinks"]
