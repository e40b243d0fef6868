"""`METHODS`, the registry of methods: to add one, write the module that plans it in this folder and a row here.

The function that carries the plan out has a row in `streampca.fitting.methods.METHODS`.
"""

from __future__ import annotations

# name -> module with the functions of `choose_method.Method`, imported on first use
METHODS: dict[str, str] = {"covariance": ".covariance", "dual": ".dual", "randomized": ".randomized", "em": ".em"}
