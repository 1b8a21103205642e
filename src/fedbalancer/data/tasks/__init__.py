"""Tasks: one file each, with its data, its model and its settings."""

from fedbalancer.core.task import Samples
from fedbalancer.data.registry import SCALES, TASKS, TaskEntry, load_task
from fedbalancer.data.tasks.task import Task

__all__ = ["SCALES", "TASKS", "Samples", "Task", "TaskEntry", "load_task"]
