"""Who runs the tasks: this process, its threads, or a cluster. Does not know what PCA is.

A `Task` folds one span into one accumulator, block by block; partials merge from left to right by position, so equal
plans give equal bits on every executor. Called by `methods`.
"""

from .local import LocalExecutor, SerialExecutor
from .protocol import Executor, Keeper, Saved, Task
from .wanted import Wanted

__all__ = ["Executor", "Keeper", "LocalExecutor", "Saved", "SerialExecutor", "Task", "Wanted"]
