"""The numbers alone: distances in pieces, precisions by what scores can tell, and means that float32 cannot hold."""

from __future__ import annotations

import numpy as np
import pytest

from streampca.models import subspace
from streampca.models.subspace import Subspace, squared_lengths
from streampca.planning.blocks import Span

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def offset():
    """A subspace whose mean float32 holds to 0.004 only, and rows near it."""
    basis = np.linalg.qr(RNG.normal(size=(300, 4)))[0].T
    mean = RNG.normal(size=300) + 1e5
    rows = (RNG.normal(size=(9, 300)) + mean).astype(np.float32)
    return Subspace(mean, basis.astype(np.float32), np.array([4.0, 1.0, 1e-9, 0.0])), rows


@pytest.mark.parametrize("piece", [1, 7, 20, 1000])
def test_squared_lengths_are_the_same_in_pieces_of_any_size(piece, monkeypatch):
    monkeypatch.setattr(subspace, "PIECE", piece)
    rows = RNG.integers(0, 256, (11, 20), dtype=np.uint8)
    for others in (RNG.random(20), RNG.integers(0, 256, (11, 20), dtype=np.uint8)):
        np.testing.assert_allclose(squared_lengths(rows, others), ((rows.astype(float) - others) ** 2).sum(axis=1))


def test_a_mean_that_float32_does_not_hold_is_taken_off_whole(offset):
    space, rows = offset
    exact = (rows.astype(np.float64) - space.mean) @ np.asarray(space.components, np.float64).T
    np.testing.assert_allclose(space.project(rows), exact, atol=1e-5)
    halves = (Span(0, 130), Span(130, 300))
    parts = [space.piece(half).part_of_scores(rows[:, slice(*half)]) for half in halves]
    np.testing.assert_allclose(sum(parts), exact, atol=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64"])
@pytest.mark.parametrize("count", [1, 4, 1000])
def test_scores_are_the_same_in_tiles_of_any_number_of_rows(dtype, count, monkeypatch):
    """Of few rows and none; a row that lacks a value has no scores, and its neighbours have theirs."""
    monkeypatch.setattr(subspace, "TILE_ROWS", count)
    monkeypatch.setattr(subspace, "TILE_BYTES", 0)
    basis = np.linalg.qr(RNG.normal(size=(30, 3)))[0].T
    space = Subspace(RNG.uniform(90, 110, size=30), basis, np.array([4.0, 2.0, 1.0]))
    rows = RNG.integers(0, 200, (11, 30)).astype(dtype)
    if rows.dtype.kind == "f":
        rows[5, 7] = np.nan
    exact = (rows.astype(np.float64) - space.mean) @ basis.T
    np.testing.assert_allclose(space.part_of_scores(rows), exact, rtol=1e-5, atol=1e-4)
    assert space.part_of_scores(rows[:0]).shape == (0, 3)


def test_t2_counts_components_that_scores_tell_from_rounding(offset):
    space, rows = offset
    np.testing.assert_array_equal(space.t2(rows, np.eye(4, dtype=np.float32)), [0.25, 1, 0, 0])
    np.testing.assert_allclose(space.t2(rows, np.eye(4)), [0.25, 1, 1e9, 0])
    np.testing.assert_allclose(space.t2(rows), (space.project(rows)[:, :2] ** 2) @ [0.25, 1], rtol=1e-6)
