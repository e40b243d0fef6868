"""Kinds of model that learn from a target: what they find, what they take, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

import streampca
from streampca.cli.commands import cli
from streampca.errors import RequestError
from streampca.models.registry import MODEL_KINDS
from streampca.planning.choose_method import _makers
from streampca.planning.registry import KINDS

ROWS = np.random.default_rng(0).normal(size=(60, 5))
LABELS = np.arange(60) % 3


def test_every_kind_has_a_class_and_a_method():
    assert set(KINDS) == set(MODEL_KINDS)
    assert all(_makers(kind) for kind in KINDS)


def test_principal_components_take_no_target(tmp_path):
    with pytest.raises(RequestError, match=r"kind is 'pca'; leave --target \(target=\) out"):
        streampca.fit(ROWS, target=LABELS)
    with pytest.raises(RequestError, match="kind is 'pca'; leave"):
        streampca.plan(ROWS, target=LABELS)
    np.save(tmp_path / "x.npy", ROWS)
    words = ["fit", str(tmp_path / "x.npy"), "--target", "y.npy", "-o", str(tmp_path / "m.zarr")]
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, RequestError)
    assert not (tmp_path / "m.zarr").exists()


def test_a_kind_is_one_of_those_there_are():
    with pytest.raises(RequestError, match="kind 'pcb' is not one of pca"):
        streampca.fit(ROWS, kind="pcb")


def test_principal_components_are_stored_as_before():
    """Without a word about kinds, in the plan and in the identity of checkpoints."""
    model = streampca.fit(ROWS, n_components=2)
    assert "kind" not in model.provenance["plan"]["request"]
    assert not {"target", "target_width"} & {*model.provenance, *model.provenance["plan"]["problem"]}
