"""Executors, which run a task over blocks: in this process, in its threads, or on a cluster; and checkpoints.

A `Task` folds one span into one accumulator, block by block; partials merge from left to right by position, so equal
plans give equal bits on every executor.
"""

from .cluster_options import ClusterOptions
from .executor import LocalExecutor
from .task import Checkpointer, Executor, SavedPartial, Task

__all__ = ["Checkpointer", "ClusterOptions", "Executor", "LocalExecutor", "SavedPartial", "Task"]
