"""One field and its use: every door has the option, checks it, and stores it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.datasets import make_moons

import streampca
from streampca.cli.commands import cli
from streampca.errors import RequestError

MOONS, MOON = make_moons(300, noise=0.05, random_state=0)


def test_the_estimator_and_fit_agree():
    """Both go by the same field, and the model says what it was."""
    kind = streampca.SpectralClustering(2, n_init=1)
    assert kind.get_params()["n_init"] == 1
    model = streampca.fit(MOONS, kind)
    np.testing.assert_array_equal(kind.fit(MOONS).labels_, model.labels)
    assert model.provenance["embedding"]["n_init"] == 1


def test_its_range_is_checked():
    """The message is made from the field and its entry in the docstring."""
    with pytest.raises(RequestError, match=r"n_init = 0: give a whole number of at least 1 \(number of starts"):
        streampca.fit(MOONS, streampca.SpectralClustering(2, n_init=0))


def test_the_command_line_and_run_files_have_it(tmp_path, monkeypatch):
    """Without a word about it in either."""
    monkeypatch.chdir(tmp_path)
    np.save("moons.npy", MOONS)
    asked = ["fit", "moons.npy", "--kind", "spectral-clustering", "--n-clusters", "2", "--n-init", "1", "-o", "m.zarr"]
    assert "n_init: 1" in CliRunner().invoke(cli, [*asked, "--print-config"]).output
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 0, done.output
    about = json.loads(CliRunner().invoke(cli, ["inspect", "m.zarr", "--json"]).output)
    assert about["provenance"]["embedding"]["n_init"] == 1
    refused = CliRunner().invoke(cli, ["fit", "moons.npy", "--n-init", "1", "-o", "other.zarr"])
    assert refused.exit_code == 2
    assert "spectral-clustering" in refused.output
