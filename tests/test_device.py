"""Products on a device, on torch's own processor device: the laws, the bits of exact sums, and rounding."""

from __future__ import annotations

from functools import cache, partial
from importlib.util import find_spec

import numpy as np
import pytest
from test_accumulate import along, fed, new_for, same_statistic, values

from streampca.testing import AccumulatorLaws, assert_same_state

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

DEVICE = "torch:cpu"
KINDS = ["scatter", "scatter_block", "gram", "gram_block", "gram_block, weighted", "scatter, double", "gram, double"]


@cache
def multiplying_there(kind):
    """Return a class of accumulators that stay on the device when they are made of a state, as laws make them."""

    class OnDevice(kind):
        def __init__(self, *given, **options):
            super().__init__(*given, **options | {"device": DEVICE})

    return OnDevice


def on_device(kind, parts):
    new = new_for(kind, parts)
    return partial(multiplying_there(new.func), *new.args, **new.keywords)


@pytest.mark.parametrize("dtype", ["u1", "u2", ">f4", "f8"])
@pytest.mark.parametrize("kind", KINDS)
def test_laws_and_answers_are_those_of_the_processor(kind, dtype):
    parts = along(kind, np.split(values(300, dtype, 100.0, seed=3), [11, 11, 140]))
    new = on_device(kind, parts)
    AccumulatorLaws(new, same_statistic).check(parts)
    same_statistic(fed(new, parts), fed(new_for(kind, parts), parts))


@pytest.mark.parametrize(("kind", "name"), [("scatter", "scatter"), ("gram", "gram")])
def test_exact_sums_have_the_bits_of_the_processor(kind, name):
    parts = along(kind, np.split(values(3000, "u2", 1e4, seed=3), [11, 1140]))
    found, expected = fed(on_device(kind, parts), parts), fed(new_for(kind, parts), parts)
    assert found.sums_exactly
    assert found.agrees
    np.testing.assert_array_equal(np.triu(found.state()[name]), np.triu(expected.state()[name]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_in_the_middle_changes_no_bit(kind):
    parts = along(kind, np.split(values(500, "f4", 1e4, seed=8), 5))
    new, axis = on_device(kind, parts), 1 if kind.startswith("gram") else 0
    whole, half = fed(new, parts), fed(new, parts[:2])
    half.release()
    later = type(half).from_state(half.state())
    for number, part in enumerate(parts[2:], 2):
        later.update(part, at=number * part.shape[axis])
        later.state()
    assert_same_state(later.state(), whole.state())
