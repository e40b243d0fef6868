"""Parameters of the estimators are those of the kinds they fit, documented, typed and left as they were given."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

import streampca
from streampca import Preparation, Run
from streampca.errors import RequestError
from streampca.kinds.description import default_of, entries_in, fields_of
from streampca.kinds.registry import KINDS, kind_class
from streampca.preprocessing.run_options import estimator_name

OWN = {  # parameters that only scikit-learn's interface has
    "kernel-pca": {"alpha", "fit_inverse_transform", "remove_zero_eig"},
    "classical-mds": {"metric_params"},
    "spectral-embedding": {"affinity"},
    "spectral-clustering": {"affinity"},
}
WHITENED = ("pca", "supervised-pca", "supervised-principal-components", "fisher-discriminant",
            "sliced-inverse-regression")  # fmt: skip
ROWS = np.random.default_rng(0).normal(size=(60, 8)) + np.eye(60, 8) * 3
LABELS = np.arange(60) % 3
NUMBERS = ROWS[:, 0] + 0.1 * ROWS[:, 1]


def class_of(kind):
    return getattr(streampca, estimator_name(kind))


def samples_of(cls):
    """Return samples of a kind, and a target where it has one; few of a semidefinite program."""
    rule = cls.target_rule
    targets = {"features": LABELS, "classes": LABELS, "slices": NUMBERS, "number": NUMBERS, "actions": LABELS[:12]}
    return ROWS[:12] if rule == "actions" else ROWS, targets.get(rule)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_those_of_the_kind(kind):
    cls, fields = class_of(kind), fields_of(kind_class(kind))
    whiten = {"whiten"} if kind in WHITENED else set()
    assert {*cls().get_params()} == {*fields, "preparation", "run"} | whiten | OWN.get(kind, set())
    assert {name: getattr(cls(), name) for name in fields} == {name: default_of(fields[name]) for name in fields}
    positional = [
        item for item in inspect.signature(cls).parameters.values() if item.kind is item.POSITIONAL_OR_KEYWORD
    ]
    assert len(positional) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_has_an_entry_in_the_docstring(kind):
    cls = class_of(kind)
    entries = dict(entries_in(cls.__doc__))
    assert [*entries] == [*inspect.signature(cls).parameters]
    assert all(entry.text.endswith(".") for entry in entries.values())
    assert max(map(len, cls.__doc__.splitlines())) <= 116  # `help` indents by 4
    sections = re.findall(r"^(\w+)\n-+$", cls.__doc__, re.MULTILINE)
    assert sections == [name for name in ("Parameters", "Attributes", "Notes", "References", "Examples")
                        if name in sections]  # fmt: skip


@pytest.mark.slow
def test_estimators_work_without_docstrings():
    code = "import streampca, numpy as np; print(streampca.PCA(2).fit(np.eye(9)).n_components_)"
    run = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True)
    assert (run.stdout, run.returncode) == ("2\n", 0), run.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_stay_as_they_were_given(kind):
    cls = class_of(kind)
    rows, target = samples_of(cls)
    run = Run(memory="1 GiB", listener=lambda event: None)
    given = cls(random_state=np.random.RandomState(3), preparation=Preparation(scale=2.0), run=run)
    before = given.get_params()
    given.fit(rows, target)
    assert all(given.get_params()[name] is value for name, value in before.items())
    assert clone(given).run is run
    assert repr(cls()) == f"{cls.__name__}()"
    assert "run=Run(memory='1 GiB'" in repr(given)


@pytest.mark.parametrize("kind", KINDS)
def test_estimators_are_pickled_with_their_run(kind):
    cls = class_of(kind)
    rows, target = samples_of(cls)
    ours = cls(run=Run(memory="1 GiB")).fit(rows, target)
    again = pickle.loads(pickle.dumps(ours))  # noqa: S301 - made on the line before
    np.testing.assert_array_equal(again.transform(rows), ours.transform(rows))
    assert again.run == ours.run


@pytest.mark.parametrize("kind", KINDS)
def test_fit_takes_an_estimator_for_its_kind(kind, tmp_path):
    """The same bits, also in the output that the estimator's run asks for, which is refused where it exists."""
    cls = class_of(kind)
    rows, target = samples_of(cls)
    run = Run(output=tmp_path / "own.zarr")
    ours = cls(run=run, preparation=Preparation(scale=2.0)).fit(rows, target)
    model = streampca.fit(rows, cls(preparation=Preparation(scale=2.0)), target=target)
    signs, components = 1, model.basis.components
    if kind == "classical-mds":  # whose signs are scikit-learn's
        signs = np.sign(np.sum(ours.model_.components * components, axis=1))[:, None]
    for other in (ours.model_, streampca.load(tmp_path / "own.zarr")):
        np.testing.assert_array_equal(np.asarray(other.basis.components) * signs, components)
    np.testing.assert_array_equal(streampca.load(tmp_path / "own.zarr").transform(rows),
                                  ours.model_.transform(rows))  # fmt: skip
    with pytest.raises(streampca.errors.OutputError, match="exists"):
        cls(run=run).fit(rows, target)


def test_runs_hold_what_batches_and_affinities_have_no_use_for():
    batches = (ROWS[start : start + 20] for start in range(0, 60, 20))
    with pytest.raises(RequestError, match="batches can be read only once, and workers needs"):
        streampca.PCA(2, run=Run(workers=2)).fit(batches)
    with pytest.raises(RequestError, match="fit has no use for checkpoint='c'; leave it out"):
        streampca.SpectralEmbedding(2, affinity="rbf", run=Run(checkpoint="c")).fit(ROWS)
    with pytest.raises(RequestError, match="run = 'fast': give a Run"):
        streampca.PCA(2, run="fast").fit(ROWS)


@pytest.mark.parametrize("kind", ["isomap", "spectral-clustering", "classical-mds"])
def test_samples_that_are_left_out_have_no_place(kind):
    rows = ROWS.copy()
    rows[[4, 50], 2] = np.nan
    kept = np.setdiff1d(np.arange(60), [4, 50])
    ours, theirs = (class_of(kind)(missing=missing) for missing in ("drop-samples", "error"))
    ours.fit(rows)
    np.testing.assert_array_equal(ours.embedding_[kept], theirs.fit(rows[kept]).embedding_)
    assert len(ours.embedding_) == 60
    assert np.isnan(ours.embedding_[[4, 50]]).all()
    if kind == "spectral-clustering":
        np.testing.assert_array_equal(ours.labels_[kept], theirs.labels_)
        assert (ours.labels_[[4, 50]] == -1).all()


@pytest.mark.parametrize(
    "estimator",
    [
        streampca.PCA(3),
        streampca.KernelPCA(3, kernel="rbf"),
        streampca.ClassicalMDS(2),
        streampca.Isomap(2),
        streampca.SpectralClustering(2),
        streampca.FisherDiscriminant(1),
        streampca.SupervisedPrincipalComponents(2),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_arrays_of_estimators_are_read_only(estimator, dtype):
    """What was fitted is replaced by a fit, never edited: an edit would have changed some results and not others."""
    fitted = clone(estimator).fit(ROWS.astype(dtype), np.arange(60) % 2)
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - our own
    names = [name for name in dir(fitted) if name.endswith("_") and not name.startswith("_")]
    arrays = {name for name in names if isinstance(getattr(fitted, name, None), np.ndarray)}
    assert arrays
    for ours in (fitted, again):
        for name in arrays:
            with pytest.raises(ValueError, match="read-only"):
                getattr(ours, name)[...] = 0
    assert fitted.fit_transform(ROWS.astype(dtype), np.arange(60) % 2).flags.writeable


WRONG = {
    "streampca.PCA(toll=3)": 'Unexpected keyword argument "toll"',
    "streampca.PCA(50, 3)": "Too many positional arguments",
    "streampca.Isomap(2, 10)": "Too many positional arguments",
    'streampca.KernelPCA(3, kernel="rbf", landmark_choice="far")': 'Argument "landmark_choice"',
    "streampca.SupervisedPrincipalComponents(3, folds=3)": 'Unexpected keyword argument "folds"',
    "streampca.SpectralClustering(3, method='auto')": 'Unexpected keyword argument "method"',
}
RIGHT = """import streampca

streampca.PCA(50, whiten=True, run=streampca.Run(memory="2 GiB")).set_params(tol=1e-3).fit([[1.0]])
streampca.fit("x.npy", streampca.SpectralEmbedding(3, affinity="rbf"), memory="2 GiB")
"""


@pytest.mark.slow
def test_type_checkers_know_the_parameters(tmp_path):
    (tmp_path / "given.py").write_text(RIGHT + "\n".join(WRONG) + "\n")
    options = ["--config-file=", f"--cache-dir={tmp_path}", "--follow-imports=silent", "--ignore-missing-imports"]
    command = [sys.executable, "-m", "mypy", *options, "given.py"]
    place = {"MYPYPATH": str(Path(streampca.__file__).parents[1])}
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=place)
    found = {int(line.split(":")[1]): line for line in run.stdout.splitlines() if ": error: " in line}
    first = len(RIGHT.splitlines()) + 1
    assert [*found] == [*range(first, first + len(WRONG))], run.stdout + run.stderr
    for line, message in zip(found.values(), WRONG.values(), strict=True):
        assert message in line
