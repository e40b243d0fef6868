"""Damaged files, models and checkpoints are refused in one line that names them, or read as what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import corruption
import numpy as np
import pytest
from sources import SOURCES

import streampca

NAMES = (*corruption.FORMATS, *corruption.OTHERS)
SCRIPT = Path(corruption.__file__)
EACH = 13  # seeds a format
CAMPAIGN = 125  # the same: 2000 cases in 16 formats; ten times as many were tried once, without a failure


@pytest.mark.slow
@pytest.mark.parametrize("each", [EACH, pytest.param(CAMPAIGN, marks=pytest.mark.campaign)])
def test_damaged_files(each, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-W", "ignore", SCRIPT, *(f"{name}:0-{each - 1}" for name in NAMES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    lines = done.stdout.splitlines()
    wrong = [json.loads(line) for line in lines if line.startswith("{")]
    assert wrong == [], "repeat one by: python tests/corruption.py CASE"
    assert done.returncode == 0, f"{lines[-1]} ended the process:\n{done.stderr[-3000:]}"
    assert lines[-1] == "done"
    assert len(lines) == 1 + each * len(NAMES)


@pytest.mark.parametrize("name", corruption.FORMATS)
def test_whole_files_are_read(name, tmp_path):
    """The test of the test: what is not damaged passes, and a wrong shape or a crash is seen."""
    collection, x = SOURCES[name](tmp_path)
    values = corruption.values_of(collection)
    np.testing.assert_array_equal(values, x)
    source = collection.source.partition(", array")[0]
    assert corruption.broken_law(name, "cut", source, collection, values, []) is None
    fewer = streampca.open_collection(x[:-1].copy())
    assert corruption.broken_law(name, "cut", source, fewer, x[:-1], []) is not None
