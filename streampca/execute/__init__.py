"""Who runs the tasks: this process now, a cluster later. Does not know what PCA is.

A `Task` folds one span of samples into one accumulator, block by block; partials merge from left to right by position,
so equal plans give equal bits on every executor. Called by `methods`.
"""

from .local import SerialExecutor
from .protocol import Executor, Task

__all__ = ["Executor", "SerialExecutor", "Task"]
