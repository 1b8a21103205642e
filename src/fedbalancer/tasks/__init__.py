"""Tasks: one file each, with its data, its model and its settings."""

from fedbalancer.task import Samples, Task
from fedbalancer.tasks.registry import SCALES, TASKS, TaskEntry, load_task

__all__ = ["SCALES", "TASKS", "Samples", "Task", "TaskEntry", "load_task"]
