"""What goes on in a run, told to others while it goes on: TensorBoard, MLflow, Weights & Biases, or a sink of yours."""

from fedbalancer.experiments.tracking.names import check_sinks, open_sinks
from fedbalancer.experiments.tracking.sink import Callbacks, Hook, Sink, Tracks

__all__ = ["Callbacks", "Hook", "Sink", "Tracks", "check_sinks", "open_sinks"]
