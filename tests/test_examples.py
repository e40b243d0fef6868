"""Every public function has an example in its documentation, which runs and prints what it says."""

from __future__ import annotations

import doctest
import inspect

import matplotlib as mpl
import pytest
from matplotlib import pyplot

import streampca
from streampca import plot

PUBLIC = {name: getattr(module, name) for module in (streampca, plot) for name in module.__all__}
FUNCTIONS = {name: each for name, each in PUBLIC.items() if inspect.isfunction(each)}
EXAMPLES = {name: each for name, each in PUBLIC.items() if ">>>" in (each.__doc__ or "")}


def test_every_public_function_has_an_example():
    assert FUNCTIONS.keys() - EXAMPLES.keys() == set()


SLOW = {"write_report"}  # draws every picture


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in sorted(EXAMPLES)]
)
def test_example(name, here):
    examples = doctest.DocTestFinder(recurse=False).find(EXAMPLES[name], name, globs={})
    with mpl.rc_context({"backend": "agg"}):
        outcomes = [doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example) for example in examples]
    pyplot.close("all")
    assert sum(outcome.attempted for outcome in outcomes) > 0
    assert sum(outcome.failed for outcome in outcomes) == 0
