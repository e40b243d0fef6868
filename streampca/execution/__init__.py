"""Who runs the tasks: this process, its threads, or a cluster. Does not know what PCA is.

A `Task` folds one span into one accumulator, block by block; partials merge from left to right by position, so equal
plans give equal bits on every executor. Called by `methods`.
"""

from .cluster_options import Wanted
from .local import LocalExecutor, SerialExecutor
from .task import Executor, Keeper, Saved, Task

__all__ = ["Executor", "Keeper", "LocalExecutor", "Saved", "SerialExecutor", "Task", "Wanted"]
