"""Tasks: one file each, with its data, its model and its settings."""

from fedbalancer.task import Samples
from fedbalancer.tasks.registry import SCALES, TASKS, TaskEntry, load_task
from fedbalancer.tasks.task import Task

__all__ = ["SCALES", "TASKS", "Samples", "Task", "TaskEntry", "load_task"]
