"""Tasks and their data.

`tasks` holds the built-in tasks, `readers` the file formats, `catalogue` the data on this computer, and `own` the tasks
made from a user's own data. A new task uses `Source`, `load_or_prepare` and `SlicedClients`.
"""

from fedbalancer.data.cache import Prepared, checksum, load_or_prepare
from fedbalancer.data.clients import SlicedClients, check_user_count, concatenate_users
from fedbalancer.data.registry import SCALES, TASKS, TaskEntry, load_task
from fedbalancer.data.source import Source, choose_source
from fedbalancer.data.task import Task

__all__ = [
    "SCALES",
    "TASKS",
    "Prepared",
    "SlicedClients",
    "Source",
    "Task",
    "TaskEntry",
    "check_user_count",
    "checksum",
    "choose_source",
    "concatenate_users",
    "load_or_prepare",
    "load_task",
]
