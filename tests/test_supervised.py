"""Kinds of model that learn from a target: their axes, the targets they accept, and their refusals."""

from __future__ import annotations

import json
import logging
import pickle

import by_options
import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from scipy.linalg import eigh
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.utils.estimator_checks import parametrize_with_checks

import streampca
from streampca import FisherDiscriminant, Preparation, SlicedInverseRegression, SupervisedPCA
from streampca.cli.commands import cli
from streampca.errors import BudgetError, DataError, ModelError, RequestError, Stopped, StreampcaError
from streampca.events import Assumed, BlockDone, Warned
from streampca.execution.checkpoint import Checkpointing
from streampca.kinds.registry import KINDS, kind_class
from streampca.models.registry import MODEL_KINDS
from streampca.planning.choose_method import _makers
from streampca.planning.request import Request

ROWS = np.random.default_rng(0).normal(size=(60, 5))
LABELS = np.arange(60) % 3
DIGITS, TARGETS = load_digits(return_X_y=True)
VARYING = DIGITS[:, np.max([DIGITS[label == TARGETS].std(axis=0) for label in range(10)], axis=0) > 0]


def commanded(*words):
    """Run a command and return its output."""
    done = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def same_up_to_sign(one, other, atol):
    """Assert that two matrices are equal up to the sign of each row."""
    signs = np.sign(np.sum(one * other, axis=1))
    np.testing.assert_allclose(one * signs[:, None], other, atol=atol)


# -- kinds and targets


def test_every_kind_has_a_class_and_a_method():
    kinds = [kind_class(kind)() for kind in KINDS]
    assert {*MODEL_KINDS} - {*KINDS} == {"classical-mds-of-pairs", "rotated-pca", "bootstrap"}
    assert not {*KINDS} - {*MODEL_KINDS}
    assert all(kind.uses_graph or _makers(Request(kind)) for kind in kinds)


def test_principal_components_take_no_target(tmp_path):
    with pytest.raises(RequestError, match=r"kind is 'pca'; leave target out"):
        streampca.fit(ROWS, target=LABELS)
    with pytest.raises(RequestError, match="kind is 'pca'; leave"):
        streampca.plan(ROWS, target=LABELS)
    np.save(tmp_path / "x.npy", ROWS)
    words = ["fit", str(tmp_path / "x.npy"), "--target", "y.npy", "-o", str(tmp_path / "m.zarr")]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert "--target is no option of kind pca" in done.output
    assert not (tmp_path / "m.zarr").exists()


def test_a_kind_is_one_of_those_there_are():
    for wrong in ("pca", streampca.PCA):
        with pytest.raises(RequestError, match=r"kind = .*: give a kind of model with its options, such as streampca"):
            streampca.fit(ROWS, wrong)


def test_principal_components_are_stored_without_a_target():
    model = streampca.fit(ROWS, n_components=2)
    assert "target" not in model.provenance
    assert model.provenance["plan"]["problem"]["target_width"] == 0


@pytest.mark.parametrize(("target", "error", "message"), [
    (None, RequestError, r"kind 'supervised-pca' learns from a label or number of each sample; give target=column"),
    (LABELS * 0 + 7, DataError, "the target of numpy array is 7 for every sample, and kind .* needs two classes"),
    (np.full(60, 0.5), DataError, r"is \[0.5\] for every sample, from which nothing can be learned"),
    (LABELS[:7], RequestError, "the column given has 7 values and numpy array has 60 samples"),
    (np.where(LABELS, np.nan, 0.5), DataError, r"the target of sample 1 of numpy array is \[nan\]"),
    (np.zeros((2, 60, 3)), StreampcaError, "give one number or text for each sample"),
])  # fmt: skip
def test_targets_that_say_nothing_are_refused(target, error, message):
    with pytest.raises(error, match=message):
        by_options.fit(ROWS, kind="supervised-pca", target=target)
    with pytest.raises(error, match=message):
        by_options.plan(ROWS, kind="supervised-pca", target=target)


def labelled(folder):
    """The same ten labels in every form they come in."""
    (folder / "y.csv").write_text("digit,text\n" + "".join(f"{label}.0,{label}\n" for label in TARGETS))
    np.save(folder / "y.npy", TARGETS.astype("f4"))
    return {
        **{dtype: TARGETS.astype(dtype) for dtype in ("u1", "i8", "f2", "f4", "f8")}, "list": (TARGETS * 1.0).tolist(),
        "npy": str(folder / "y.npy"), "csv": f"{folder}/y.csv:digit",
    }  # fmt: skip


@pytest.mark.parametrize(("estimator", "options"), [
    (SupervisedPCA(), {"kind": "supervised-pca"}),
    (FisherDiscriminant(shrinkage=0.1), {"kind": "fisher-discriminant", "shrinkage": 0.1}),
])  # fmt: skip
def test_labels_are_classes_whatever_holds_them(estimator, options, tmp_path):
    expected = by_options.fit(DIGITS, target=TARGETS, n_components=None, **options)
    assert expected.n_components == 9
    for form, target in labelled(tmp_path).items():
        fitted = clone(estimator).fit(DIGITS, target)
        model = by_options.fit(DIGITS, target=target, n_components=None, **options)
        for found in (fitted.model_, model):
            np.testing.assert_array_equal(found.components, expected.components, err_msg=form)
            assert found.provenance["target"] == expected.provenance["target"], form
        assert fitted.classes_.tolist() == list(range(10))
        assert by_options.plan(DIGITS, target=target, **options).problem.target_width == 10


def test_a_type_of_target_has_the_same_answer_at_every_door(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", DIGITS)
    np.save("y.npy", TARGETS)
    words = ["x.npy", "--kind", "supervised-pca", "--target", "y.npy", "-k", "all"]
    for kind, k in (("numbers", 1), ("classes", 9), ("auto", 9)):
        model = by_options.fit(DIGITS, kind="supervised-pca", target=TARGETS, target_type=kind, n_components=None)
        assert model.n_components == k
        commanded("fit", *words, "--target-type", kind, "-o", f"{kind}.zarr", "-q")
        text = "collection: {source: x.npy, target: y.npy}\nmodel: {kind: supervised-pca, "
        (tmp_path / "run.yaml").write_text(text + f"target_type: {kind}}}\noutput: {{directory: run-{kind}}}\n")
        commanded("run", "run.yaml", "-q")
        found = [streampca.load(f"{kind}.zarr"), streampca.load(f"run-{kind}/model.zarr")]
        for other in (*found, SupervisedPCA(target_type=kind).fit(DIGITS, TARGETS).model_):
            np.testing.assert_array_equal(np.asarray(other.components), model.components)
            assert other.provenance["plan"]["request"].get("target_type", "auto") == kind
        labels = 10 if k == 9 else 1
        assert f"label features, 64 x {labels}" in commanded("plan", *words, "--target-type", kind)
    (tmp_path / "run.yaml").write_text((tmp_path / "run.yaml").read_text().replace("type: auto", "type: numbers"))
    (tmp_path / "run.yaml").write_text((tmp_path / "run.yaml").read_text().replace("run-auto", "run-classes"))
    done = CliRunner().invoke(cli, ["run", "run.yaml", "-q"])
    assert "replaced: it was fitted with target_type 'classes' and this run has 'numbers'" in done.stderr


def test_a_checkpoint_of_another_type_of_target_is_refused(tmp_path):
    def stop(event):
        if isinstance(event, BlockDone):
            raise Stopped("now")

    how = {"kind": "supervised-pca", "target": TARGETS, "checkpoint": Checkpointing(str(tmp_path / "c"), 0)}
    with pytest.raises(Stopped):
        by_options.fit(DIGITS, target_type="classes", listener=stop, **how)
    with pytest.raises(StreampcaError, match="target_type"):
        by_options.fit(DIGITS, target_type="numbers", **how)


COUNTS = np.random.default_rng(4).integers(0, 10**6, 60)
FEW = np.array([*range(40), *range(20)])


@pytest.mark.parametrize(("target", "kind", "said"), [
    (LABELS, "classes", "is taken for 3 classes, as it holds whole numbers"),
    (LABELS + 0.0, "classes", "is taken for 3 classes, as it holds whole numbers"),
    (LABELS * 10**9, "classes", "is taken for 3 classes"),
    (LABELS.astype(str), "classes", None),
    (LABELS > 0, "classes", None),
    (COUNTS, "numbers", "is taken for numbers, as 60 of 60 values are different"),
    (COUNTS[np.arange(60) % 40] * 1.0, "numbers", "is taken for numbers, as 40 of 60 values are different"),
    (np.arange(60), "numbers", "is taken for numbers, as 60 of 60 values are different"),
    (LABELS / 2, "numbers", "is taken for numbers, as not all are whole"),
    (ROWS[:, 0], "numbers", None),
    (ROWS[:, :2].round(), "numbers", None),
])  # fmt: skip
def test_what_a_target_is_taken_for_is_said_once(target, kind, said, caplog):
    how, events = {"kind": "supervised-pca", "target": target, "n_components": 1}, []
    rows = ROWS.copy()
    rows[0, 0] = np.nan  # the target is read again for the samples that are left
    caplog.set_level(logging.INFO, "streampca")
    model = by_options.fit(rows, missing="drop-samples", listener=events.append, **how)
    assert (model.classes is None) == (kind == "numbers")
    messages = [event.message for event in events if isinstance(event, Assumed)]
    assert not any(isinstance(event, Warned) and "target" in event.message for event in events)
    assert len(messages) == (said is not None)
    assert all(said in message and "target_type=" in message and "\n" not in message for message in messages)
    for settled in ("auto", kind):
        caplog.clear()
        fitted = SupervisedPCA(1, target_type=settled, missing="drop-samples").fit(rows, target)
        np.testing.assert_array_equal(fitted.components_, model.components)
        logged = [record for record in caplog.records if "target" in record.getMessage()]
        assert [record.levelname for record in logged] == ["INFO"] * (said is not None and settled == "auto")


def test_the_type_of_a_target_is_that_of_all_samples_where_some_are_left_out(tmp_path, monkeypatch):
    """Half of all values are different, and more than half of those that are left."""
    monkeypatch.chdir(tmp_path)
    target, rows = np.append(np.repeat(np.arange(25), 2), [0] * 10) * 7, ROWS.copy()
    rows[-10:, 0] = np.nan
    rows[:-10:2][:8, 0] = np.nan
    how = {"kind": "supervised-pca", "target": target, "missing": "drop-samples", "n_components": 2}
    model = by_options.fit(rows, **how)
    assert len(model.classes) == 25
    np.save("x.npy", rows)
    np.save("y.npy", target)
    words = ("--kind", "supervised-pca", "--target", "y.npy", "--missing", "drop-samples", "-k", 2)
    commanded("fit", "x.npy", *words, "-o", "m.zarr", "-q")
    np.testing.assert_array_equal(np.asarray(streampca.load("m.zarr").components), model.components)


@pytest.mark.parametrize("target", [FEW, FEW + 0.0, FEW - 7])
def test_whole_numbers_that_may_be_either_are_refused_with_a_remedy(target):
    how = {"kind": "supervised-pca", "target": target, "n_components": None}
    for call in (by_options.fit, by_options.plan):
        with pytest.raises(
            RequestError, match=r"in 60 samples, which may be .*target_type='classes' or 'numbers'"
        ) as said:
            call(ROWS, **how)
        assert "\n" not in str(said.value)
    assert by_options.fit(ROWS, target_type="numbers", **how).n_components == 1
    assert by_options.fit(ROWS, target_type="classes", **how).n_components == 5


@pytest.mark.parametrize(("estimator", "kind", "other"), [
    (FisherDiscriminant(), "fisher-discriminant", "numbers"),
    (SlicedInverseRegression(), "sliced-inverse-regression", "classes"),
    (streampca.SupervisedPrincipalComponents(), "supervised-principal-components", "classes"),
])  # fmt: skip
def test_kinds_of_one_type_of_target_refuse_the_other_by_name(estimator, kind, other):
    only, rows = ({"classes", "numbers"} - {other}).pop(), ROWS + LABELS[:, None]
    message = f"target_type = '{other}': give 'auto' or '{only}' "
    with pytest.raises(RequestError, match=message):
        clone(estimator).set_params(target_type=other).fit(rows, LABELS)
    for call in (by_options.fit, by_options.plan):
        with pytest.raises(RequestError, match=message):
            call(rows, kind=kind, target=LABELS, target_type=other)
    same = clone(estimator).fit(rows, LABELS).components_
    np.testing.assert_array_equal(clone(estimator).set_params(target_type=only).fit(rows, LABELS).components_, same)
    np.testing.assert_array_equal(clone(estimator).fit(rows, LABELS * 1.0).components_, same)


@pytest.mark.parametrize(("options", "message"), [
    ({"target_type": "label"}, "target_type = 'label': give 'auto', 'classes' or 'numbers' "),
    ({"target": LABELS.astype(str), "target_type": "numbers"}, "holds text such as '0', which is no number"),
    ({"target": np.eye(60), "target_type": "classes"}, "60 numbers a sample, which are no class"),
    ({"target": LABELS / 2, "kind": "fisher-discriminant"}, r"is 0.5, and kind .*target_type='classes'"),
])  # fmt: skip
def test_types_of_target_that_do_not_fit_are_refused(options, message):
    given = {"kind": "supervised-pca", "target": LABELS} | options
    with pytest.raises(RequestError, match=message) as said:
        by_options.fit(ROWS, **given)
    assert "\n" not in str(said.value)


def test_fractions_are_classes_where_this_is_said():
    doses = np.array([0.1, 0.25, 2.0])[LABELS]
    for kind in (SupervisedPCA(target_type="classes"), FisherDiscriminant(target_type="classes")):
        fitted, same = clone(kind).fit(ROWS, doses), clone(kind).fit(ROWS, LABELS)
        assert fitted.classes_.tolist() == [0.1, 0.25, 2.0]
        np.testing.assert_array_equal(fitted.components_, same.components_)


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"n_components": 3}, RequestError, "n_components=3 exceeds 2, the most .* a target of rank 2"),
    ({"n_components": "mp"}, RequestError, "counts principal components .*; ask for a number, a fraction"),
    ({"missing": "em"}, RequestError, "missing = 'em': give 'error', 'drop-features' or 'drop-samples'"),
    ({"part": "1/2"}, RequestError, "are not merged from parts of a collection"),
    ({"memory": "4 MiB"}, BudgetError, "method 'cross-scatter' needs .* Set memory to at least"),
])  # fmt: skip
def test_options_that_do_not_go_with_a_target_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        by_options.fit(ROWS, kind="supervised-pca", target=LABELS, **options)


# -- supervised principal components


def dense(x, b, weights=None):
    """Return the eigenvalues, descending, and eigenvectors of X^T H B H X, where H centres weighted samples."""
    weights = np.ones(len(x)) if weights is None else weights
    about = (x - np.average(x, axis=0, weights=weights)) * weights[:, None]
    values, vectors = np.linalg.eigh(about.T @ b @ about)
    return values[::-1], vectors[:, ::-1].T


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("target", ["classes", "text", "numbers", "given"])
def test_supervised_axes_are_those_of_the_dense_matrix(target, weighted):
    rng = np.random.default_rng(2)
    weights = rng.integers(0, 3, len(DIGITS)).astype(float) if weighted else None
    given = {
        "classes": TARGETS,
        "text": np.array([f"digit {label}" for label in TARGETS]),
        "numbers": np.sin(TARGETS) + 0.25,
        "given": rng.normal(size=(len(DIGITS), 3)),
    }[target]
    features = (TARGETS[:, None] == np.arange(10)).astype(float) if target in ("classes", "text") else given
    features = features.reshape(len(DIGITS), -1)
    model = by_options.fit(DIGITS, kind="supervised-pca", target=given, n_components=None, sample_weight=weights)
    values, vectors = dense(DIGITS, features @ features.T, weights)
    k = model.n_components
    assert k == {"classes": 9, "text": 9, "numbers": 1, "given": 3}[target]
    total = len(DIGITS) if weights is None else weights.sum()
    np.testing.assert_allclose(model.dependence * (total - 1) ** 2, values[:k], rtol=1e-9)
    assert model.total_dependence == pytest.approx(values[:k].sum() / (total - 1) ** 2)
    same_up_to_sign(model.components, vectors[:k], atol=1e-9)
    scores = model.transform(DIGITS)
    copies = np.ones(len(DIGITS)) if weights is None else weights
    np.testing.assert_allclose(copies @ scores**2 / (total - 1), model.explained_variance, rtol=1e-9)
    np.testing.assert_allclose(model.total_variance, copies @ np.sum((DIGITS - model.mean) ** 2, axis=1) / (total - 1))


def test_the_criterion_is_that_of_hilbert_and_schmidt():
    """With a linear kernel of the samples it is tr(K H B H) / (n - 1)^2."""
    x, n = ROWS + 2 * LABELS[:, None], len(ROWS)
    model = by_options.fit(x, kind="supervised-pca", target=LABELS, n_components=None)
    centring = np.eye(n) - 1 / n
    kernel = (LABELS[:, None] == LABELS).astype(float)
    hsic = np.trace(x @ x.T @ centring @ kernel @ centring) / (n - 1) ** 2
    assert model.total_dependence == pytest.approx(hsic, rel=1e-12)
    assert model.dependence_ratio.sum() == pytest.approx(1)
    half = by_options.fit(x, kind="supervised-pca", target=LABELS, n_components=0.5)
    assert half.n_components == 1
    assert half.dependence[0] == model.dependence[0]


def test_equal_means_of_all_classes_are_refused_though_they_are_rounded():
    x = np.random.default_rng(1).standard_normal((20, 6)) * 1e3 + 7
    with pytest.raises(DataError, match="do not vary with the target at all"):
        by_options.fit(np.vstack([x] * 3), kind="supervised-pca", target=np.repeat([0, 1, 2], 20), n_components=2)


def test_samples_that_all_differ_give_principal_components():
    """The kernel of the target is then the identity."""
    ours = by_options.fit(DIGITS, kind="supervised-pca", target=np.eye(len(DIGITS)), n_components=10)
    theirs = by_options.fit(DIGITS, n_components=10)
    np.testing.assert_allclose(ours.components, theirs.components, atol=1e-8)
    np.testing.assert_allclose(ours.explained_variance, theirs.explained_variance, rtol=1e-8)


def test_samples_left_out_take_their_target_with_them():
    x = DIGITS.copy()
    x[3, 9] = np.nan
    kept = np.arange(len(x)) != 3
    how = {"kind": "supervised-pca", "n_components": 2}
    ours = by_options.fit(x, target=TARGETS, missing="drop-samples", **how)
    theirs = by_options.fit(x[kept], target=TARGETS[kept], **how)
    np.testing.assert_array_equal(ours.components, theirs.components)
    estimator = SupervisedPCA(2, missing="drop-samples").fit(x, TARGETS)
    np.testing.assert_array_equal(estimator.components_, theirs.components)
    with pytest.raises(DataError, match="sample 3 of numpy array holds NaN"):
        by_options.fit(x, target=TARGETS, **how)


def test_images_are_prepared_before_they_are_multiplied():
    images, preparation = DIGITS.reshape(-1, 8, 8), Preparation(bin=2, standardize=True)
    mask = np.ones((4, 4), bool)
    model = by_options.fit(images, kind="supervised-pca", target=TARGETS, n_components=2, preparation=preparation)
    binned = images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4))
    deviation = binned.std(axis=0)
    prepared = (binned / np.where(deviation, deviation, 1))[:, mask]
    labels = (TARGETS[:, None] == TARGETS).astype(float)
    same_up_to_sign(model.components.reshape(2, -1), dense(prepared, labels)[1][:2], atol=1e-9)


def test_a_supervised_model_is_stored_shown_and_applied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", DIGITS.reshape(-1, 8, 8).astype("u1"))
    table = "name,digit\n" + "".join(f"{row},d{label}\n" for row, label in enumerate(TARGETS))
    (tmp_path / "t.csv").write_text(table)
    words = ("x.npy", "--kind", "supervised-pca", "--target", "t.csv:digit", "-k", 2)
    assert "cross-scatter: products of samples with label features, 64 x 10" in commanded("plan", *words)
    assert "10 classes, by descending share in the dependence" in commanded("fit", *words, "-o", "m.zarr") + commanded(
        "inspect", "m.zarr"
    )
    shown = json.loads(commanded("inspect", "m.zarr", "--json", "--verify"))
    assert shown["kind"] == "supervised-pca"
    assert len(shown["dependence"]) == 2
    model = streampca.load("m.zarr")
    assert type(model).__name__ == "SupervisedPCAModel"
    assert model.classes.tolist() == [f"d{label}" for label in range(10)]
    commanded("transform", "m.zarr", "x.npy", "-o", "s.npy", "--whiten")
    scores = np.load("s.npy")
    np.testing.assert_allclose(scores.std(axis=0, ddof=1), 1, rtol=1e-5)
    images = model.reconstruct(DIGITS.reshape(-1, 8, 8))
    assert np.mean((images - DIGITS.reshape(-1, 8, 8)) ** 2) < np.mean((DIGITS - DIGITS.mean(axis=0)) ** 2)
    with pytest.raises(AttributeError, match="no attribute 'score_samples', which needs principal components; fit a"):
        model.score_samples(DIGITS.reshape(-1, 8, 8))
    with pytest.raises(ModelError, match=r"m\.zarr is of kind 'supervised-pca'; fit a model of kind 'pca' for it"):
        streampca.bootstrap(model, scores)
    with pytest.raises(ModelError, match="only models of kind 'pca' can be updated and merged"):
        streampca.merge([model, model], approximate=True)


def test_a_run_file_asks_for_it_and_knows_it_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", DIGITS)
    np.save("y.npy", TARGETS)
    text = "collection: {source: x.npy, target: y.npy}\nmodel: {kind: supervised-pca, n_components: 2}\n"
    (tmp_path / "run.yaml").write_text(text + "output: {directory: run, transform: true}\n")
    commanded("run", "run.yaml", "-q")
    (tmp_path / "run" / "scores.zarr").rename(tmp_path / "scores.zarr")
    commanded("run", "run.yaml", "-q")  # reuses the model
    assert (tmp_path / "run" / "scores.zarr").exists()
    np.save("y.npy", TARGETS % 5)
    (tmp_path / "run" / "scores.zarr").rename(tmp_path / "later.zarr")
    done = CliRunner().invoke(cli, ["run", "run.yaml", "-q"])
    assert "fitted with another target; choose another directory" in str(done.exception)


# Discriminants have some shrinkage because they refuse linearly dependent features, which some checks have, without.
@parametrize_with_checks([
    SupervisedPCA(), SupervisedPCA(1, kernel="rbf", gamma=None), FisherDiscriminant(1, shrinkage=0.5, whiten=True),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::FutureWarning")  # scikit-learn announces changes of its own
def test_scikit_learn_contract(estimator, check):
    if "sample_weight_equivalence" in check.func.__name__ and getattr(estimator, "kernel", None):
        pytest.skip("signs are those of the kernel's features, which copies change; see below for axes up to sign")
    check(estimator)


def test_the_estimator_is_the_model():
    fitted = SupervisedPCA(3).fit(DIGITS, TARGETS)
    model = by_options.fit(DIGITS, kind="supervised-pca", target=TARGETS, n_components=3)
    np.testing.assert_array_equal(fitted.components_, model.components)
    np.testing.assert_array_equal(fitted.dependence_ratio_, model.dependence_ratio)
    np.testing.assert_array_equal(fitted.classes_, np.arange(10))
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - our own
    np.testing.assert_array_equal(again.transform(DIGITS), model.transform(DIGITS))
    np.testing.assert_allclose(fitted.inverse_transform(fitted.transform(DIGITS)), model.reconstruct(DIGITS))
    assert fitted.get_feature_names_out().tolist() == [f"supervisedpca{number}" for number in range(3)]
    with pytest.raises(RequestError, match="SupervisedPCA requires y to be passed"):
        SupervisedPCA().fit(DIGITS)


def test_classes_are_those_of_the_last_fit():
    estimator = SupervisedPCA(1).fit(ROWS, LABELS)
    assert estimator.classes_.tolist() == [0, 1, 2]
    assert not hasattr(estimator.fit(ROWS, ROWS[:, 0]), "classes_")


def test_reconstructions_on_axes_at_any_angle_are_drawn_as_the_model_makes_them():
    images = DIGITS.reshape(-1, 8, 8)
    model = by_options.fit(images, kind="fisher-discriminant", target=TARGETS, n_components=5, shrinkage=0.1)
    drawn = streampca.plot.reconstructions(model, images[:1], ladder=[2, 5])[0, 1:]
    distance = np.square(images[0] - model.mean).sum()
    for ax, step in zip(drawn, [2, 5], strict=True):
        np.testing.assert_allclose(ax.images[0].get_array(), model.reconstruct(images[:1], step)[0], atol=1e-9)
        error = np.sqrt(model.reconstruction_error(images[:1], step)[0] / distance)
        assert ax.get_xlabel() == f"error {100 * error:.3g} %"


@pytest.mark.parametrize("name", ["scale", "separation", "component"])
def test_an_axis_named_like_an_array_of_the_model_is_stored_under_another_name(tmp_path, name):
    values = xr.DataArray(ROWS[:, :4].reshape(-1, 2, 2), dims=("time", "lat", name), coords={name: np.arange(2.0)})
    model = by_options.fit(values, kind="fisher-discriminant", target=LABELS, shrinkage=0.5)
    model.save(tmp_path / "model.zarr")
    again = streampca.load(tmp_path / "model.zarr")
    assert again.sample_dims == model.sample_dims
    np.testing.assert_array_equal(again.transform(values).data, model.transform(values).data)


def test_a_coordinate_named_like_an_array_of_the_kind_is_not_stored_in_its_place(tmp_path):
    along = {"separation": ("x", np.arange(5.0)), "lon": ("x", np.arange(5.0))}
    images = xr.DataArray(ROWS[:, None] * [[1.0], [2.0]], dims=("time", "y", "x"), coords=along)
    model = by_options.fit(images, kind="fisher-discriminant", target=LABELS, shrinkage=0.5, output=tmp_path / "m.zarr")
    again = streampca.load(tmp_path / "m.zarr")
    assert {*again.coordinates} == {"lon", "separation"}
    np.testing.assert_array_equal(again.coordinates["separation"].values, np.arange(5.0))
    np.testing.assert_array_equal(again.separation, model.separation)


# -- in the features of a kernel

KERNELS = {
    "rbf": {"gamma": 1e-3},
    "polynomial": {"gamma": 1e-3, "degree": 2, "coef0": 0.5},
    "laplacian": {"gamma": 1e-2},
}
FITTED, OTHERS = DIGITS[:400], DIGITS[400:500]


def supervised(x=FITTED, n_components=None, **given):
    return by_options.fit(x, kind="supervised-pca", target=TARGETS[: len(x)], n_components=n_components, **given)


@pytest.mark.parametrize("name", KERNELS)
def test_axes_of_a_kernel_are_those_of_the_generalised_problem(name):
    """It is K H B H K beta = lambda K beta, and the scores of any sample are beta^T k(x), centred."""
    theirs = {"metric": {"polynomial": "poly"}.get(name, name), **KERNELS[name]}
    matrix, between = pairwise_kernels(FITTED, **theirs), pairwise_kernels(OTHERS, FITTED, **theirs)
    n, target = len(FITTED), TARGETS[: len(FITTED)]
    centring = np.eye(n) - 1 / n
    same = (target[:, None] == target).astype(float)
    values, vectors = eigh(matrix @ centring @ same @ centring @ matrix, matrix)
    values, vectors = values[::-1][:9], vectors[:, ::-1][:, :9]
    model = supervised(kernel=name, **KERNELS[name])
    np.testing.assert_allclose(model.dependence * (n - 1) ** 2, values, rtol=1e-9)
    hsic = np.trace(matrix @ centring @ same @ centring) / (n - 1) ** 2
    assert model.total_dependence == pytest.approx(hsic, rel=1e-9)
    wanted = np.vstack([matrix - matrix.mean(axis=0), between - matrix.mean(axis=0)]) @ vectors
    scores = np.vstack([model.transform(FITTED), model.transform(OTHERS)])
    same_up_to_sign(scores.T, wanted.T, atol=1e-7 * np.abs(wanted).max())
    assert "by all 400 samples as landmarks: exact" in model.notes[0]


def test_the_linear_kernel_gives_the_axes_without_one():
    linear, plain = supervised(kernel="linear"), supervised()
    np.testing.assert_allclose(linear.dependence, plain.dependence, rtol=1e-9)
    same_up_to_sign(linear.transform(OTHERS).T, plain.transform(OTHERS).T, atol=1e-9 * np.abs(OTHERS).max())
    assert (plain.kernel, plain.notes, linear.kernel.name) == (None, (), "linear")


def test_weighted_samples_count_as_copies_in_the_features_of_a_kernel():
    weights = np.arange(150) % 3
    few, how = DIGITS[:150], {"kind": "supervised-pca", "n_components": 3, "kernel": "rbf", "gamma": 1e-3}
    model = by_options.fit(few, target=TARGETS[:150], sample_weight=weights, **how)
    copies = by_options.fit(np.repeat(few, weights, axis=0), target=np.repeat(TARGETS[:150], weights), **how)
    np.testing.assert_allclose(model.dependence, copies.dependence, rtol=1e-9)
    same_up_to_sign(model.transform(OTHERS).T, copies.transform(OTHERS).T, atol=1e-9)


@pytest.mark.parametrize("given", [{"landmarks": 60}, {"random_features": 128}], ids=["landmarks", "random"])
def test_axes_by_landmarks_and_random_features_are_those_of_mapped_samples(given):
    weights = np.arange(400) % 3 + 1.0
    model = supervised(n_components=4, kernel="rbf", sample_weight=weights, **given)
    mapping = model.preparation.mapped
    plain = supervised(mapping(FITTED), 4, sample_weight=weights)
    np.testing.assert_allclose(model.dependence, plain.dependence, rtol=1e-9)
    same_up_to_sign(model.transform(OTHERS).T, plain.transform(mapping(OTHERS)).T, atol=1e-9)
    assert "not estimated" in model.notes[0]
    exact = supervised(n_components=4, kernel="rbf")
    if "landmarks" in given:  # a projection does not increase the dependence on the target
        assert supervised(n_components=4, kernel="rbf", **given).total_dependence < exact.total_dependence


def test_axes_of_a_kernel_by_commands_run_files_and_the_estimator(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", FITTED)
    np.save("y.npy", TARGETS[:400])
    words = ["x.npy", "--kind", "supervised-pca", "--target", "y.npy", "-k", 3, "--kernel", "rbf", "--landmarks", 50]
    assert "400 samples of 50" in commanded("plan", *words)
    commanded("fit", *words, "-o", "m.zarr", "-q")
    model, loaded = supervised(n_components=3, kernel="rbf", landmarks=50), streampca.load("m.zarr")
    np.testing.assert_array_equal(loaded.transform(OTHERS), model.transform(OTHERS))
    assert loaded.kernel == model.kernel
    assert "by 50 samples as landmarks: how far the axes" in " ".join(commanded("inspect", "m.zarr").split())
    np.testing.assert_allclose(loaded.transform("x.npy").compute(), model.transform(FITTED), atol=1e-12)
    text = "collection: {source: x.npy, target: y.npy}\nmodel: {kind: supervised-pca, n_components: 3, kernel: rbf, "
    (tmp_path / "run.yaml").write_text(text + "landmarks: 50}\noutput: {model: again.zarr}\n")
    commanded("run", "run.yaml", "-q")
    np.testing.assert_array_equal(streampca.load("again.zarr").transform(OTHERS), model.transform(OTHERS))
    fitted = SupervisedPCA(3, kernel="rbf", landmarks=50).fit(FITTED, TARGETS[:400])
    np.testing.assert_array_equal(fitted.transform(OTHERS), model.transform(OTHERS))
    assert fitted.n_features_in_ == 64
    assert fitted.components_.shape == (3, model.preparation.mapped.n_features)
    with pytest.raises(RequestError, match="SupervisedPCA with a kernel has no samples for scores"):
        fitted.inverse_transform(fitted.transform(OTHERS))


@pytest.mark.parametrize(("given", "message"), [
    ({"landmarks": 50}, r"landmarks is of a kernel, and kind 'supervised-pca' has none .* give kernel='rbf'"),
    ({"gamma": 0.1}, "gamma is of a kernel"),
    ({"kernel": "rbff"}, "kernel 'rbff' is not one of .*rbf"),
    ({"kernel": "rbf", "gamma": 0}, "gamma = 0: give a number above 0"),
    ({"kernel": "rbf", "landmarks": 500}, "landmarks=500 are more than the 400 samples"),
    ({"kernel": "rbf", "landmarks": 5, "random_features": 5}, "two ways"),
    ({"kernel": "cosine", "random_features": 5}, "random features are of kernels rbf and laplacian"),
])  # fmt: skip
def test_bad_kernels_of_supervised_axes_are_one_line(given, message):
    for refused in (supervised, lambda **given: SupervisedPCA(**given).fit(FITTED, TARGETS[:400])):
        with pytest.raises(RequestError, match=message) as said:
            refused(**given)
        assert "\n" not in str(said.value)


# -- Fisher's discriminants


@pytest.mark.parametrize("shrinkage", [None, 0.1, 0.5])
def test_discriminants_are_scikit_learns(shrinkage):
    """Axes, scalings and scores agree up to sign, after scores of scikit-learn's solver "eigen" are centred."""
    theirs = LinearDiscriminantAnalysis(solver="eigen", shrinkage=shrinkage).fit(VARYING, TARGETS)
    ours = FisherDiscriminant(shrinkage=shrinkage).fit(VARYING, TARGETS)
    unit = theirs.scalings_[:, :9] / np.linalg.norm(theirs.scalings_[:, :9], axis=0)
    same_up_to_sign(ours.components_, unit.T, atol=1e-6)
    same_up_to_sign(ours.scalings_.T, theirs.scalings_[:, :9].T, atol=1e-6)
    scores = theirs.transform(VARYING)[:, :9]
    same_up_to_sign(ours.transform(VARYING).T, (scores - scores.mean(axis=0)).T, atol=1e-6)
    if shrinkage is None:
        np.testing.assert_allclose(ours.separation_ratio_, theirs.explained_variance_ratio_, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_discriminants_of_any_cut_and_dtype(dtype, monkeypatch):
    """Products are in single precision, a few samples at a time, and samples have weights."""
    weights = np.random.default_rng(0).integers(0, 3, len(VARYING))
    how = {"kind": "fisher-discriminant", "n_components": 4}
    wanted = by_options.fit(np.repeat(VARYING, weights, axis=0), target=np.repeat(TARGETS, weights), **how)
    x = VARYING.astype(dtype)
    found = by_options.fit(x, target=TARGETS, sample_weight=weights, precision="single", memory="12 MiB", **how)
    # Pixels that hardly vary within classes magnify rounding to float32; scores, unlike axes, are not affected.
    scores = np.hstack([found.transform(VARYING), wanted.transform(VARYING)])
    along = np.abs(np.corrcoef(scores.T)[:4, 4:])
    np.testing.assert_allclose(along.diagonal(), 1, atol=1e-10)
    for name in ("separation", "total_separation", "total_variance"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-6)
    for name in ("scaling", "score_variance", "explained_variance"):  # errors of first order in those of axes
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-4)


def test_oblique_axes_rebuild_samples_by_projection(tmp_path):
    model = by_options.fit(VARYING, kind="fisher-discriminant", target=TARGETS, n_components=None)
    assert np.abs(model.components @ model.components.T - np.eye(9)).max() > 0.1
    model.save(tmp_path / "m.zarr")
    model, centred = streampca.load(tmp_path / "m.zarr"), VARYING - VARYING.mean(axis=0)
    scores = model.transform(VARYING)
    np.testing.assert_allclose(scores, centred @ model.components.T, atol=1e-9)
    np.testing.assert_allclose(scores.var(axis=0, ddof=1), model.score_variance)
    np.testing.assert_allclose(model.transform(VARYING, whiten=True).var(axis=0, ddof=1), 1)
    for k in (3, 9):
        own = model.components[:k]
        projected = centred @ np.linalg.pinv(own) @ own
        np.testing.assert_allclose(model.reconstruct(VARYING, k), VARYING.mean(axis=0) + projected, atol=1e-9)
        np.testing.assert_allclose(model.inverse_transform(scores[:, :k]), model.reconstruct(VARYING, k), atol=1e-9)
        errors = np.sum((centred - projected) ** 2, axis=1)
        np.testing.assert_allclose(model.reconstruction_error(VARYING, k), errors, rtol=1e-9)
        held = model.explained_variance[:k].sum() / model.total_variance
        assert held == pytest.approx(1 - errors.sum() / np.sum(centred**2))
    np.testing.assert_allclose(model.compression().rmse, model.compression(VARYING).rmse, rtol=1e-9)
    holes = VARYING.copy()
    holes[:, 5] = np.nan
    np.testing.assert_allclose(model.transform(VARYING, missing="em"), scores, atol=1e-9)
    assert np.isfinite(model.transform(holes[:5], missing="em")).all()


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("scores", [3.0, [3.0, 1.0], np.zeros((2, 5)), np.zeros((2, 3, 2))])
def test_scores_of_a_wrong_shape_are_refused(scores, whiten):
    ours = FisherDiscriminant(2, whiten=whiten).fit(VARYING, TARGETS)
    with pytest.raises(RequestError, match=r"scores have shape .* give n rows of 1 to 2 components"):
        ours.inverse_transform(scores)


def test_some_of_the_axes_are_scaled_by_their_numbers():
    ours = FisherDiscriminant(2).fit(VARYING, TARGETS)
    scores = xr.DataArray(ours.transform(VARYING), {"component": [1, 2]}, ("sample", "component"))
    second = np.asarray(ours.transform(VARYING)) * [0, 1]
    given = ours.inverse_transform(scores.sel(component=[2]))
    np.testing.assert_allclose(given, ours.inverse_transform(second), atol=1e-12)


def test_oblique_axes_larger_than_memory_are_applied_by_pieces(tmp_path):
    rng = np.random.default_rng(1)
    x, target = rng.normal(size=(400, 300)), np.arange(400) % 3
    x[:, :2] += target[:, None]
    by_options.fit(x, kind="fisher-discriminant", target=target, n_components=None, output=tmp_path / "m.zarr")
    held, stored = streampca.load(tmp_path / "m.zarr"), streampca.load(tmp_path / "m.zarr", memory="1B")
    np.save(tmp_path / "x.npy", x)
    assert not isinstance(stored.components, np.ndarray)
    np.testing.assert_allclose(stored.transform(x), held.transform(x), atol=1e-12)
    stored.write_reconstruction(tmp_path / "x.npy", tmp_path / "r.npy")
    np.testing.assert_allclose(np.load(tmp_path / "r.npy"), held.reconstruct(x), atol=1e-9)


@pytest.mark.parametrize(("x", "target", "options", "message"), [
    (DIGITS, TARGETS, {}, r"feature 0 of numpy array is constant within classes, .* give shrinkage=0.01"),
    (np.hstack([VARYING, VARYING[:, :1]]), TARGETS, {}, r"feature 61 of .* or follows from others before it"),
    (VARYING, TARGETS + 0.5, {}, "sample 0 of numpy array is 0.5, and kind 'fisher-discriminant' learns from"),
    (VARYING, TARGETS, {"shrinkage": 1.5}, "shrinkage = 1.5: give a number from 0 to 1 or None"),
    (VARYING, TARGETS, {"n_components": 10}, "n_components=10 exceeds 9"),
    (np.tile(VARYING, (2, 1)), np.repeat([0, 1], len(VARYING)), {}, "the means of all classes of .* are equal"),
])  # fmt: skip
def test_what_has_no_discriminants_is_refused(x, target, options, message):
    with pytest.raises(StreampcaError, match=message):
        by_options.fit(x, kind="fisher-discriminant", target=target, **options)


def test_features_that_follow_from_others_are_no_matter_with_shrinkage():
    """Shrinkage and a mask are the remedies that the refusal names."""
    twice = np.hstack([VARYING, VARYING[:, :1]])
    assert FisherDiscriminant(shrinkage=0.01).fit(DIGITS, TARGETS).n_components_ == 9
    assert FisherDiscriminant(shrinkage=0.01).fit(twice, TARGETS).n_components_ == 9
    mask = np.isin(np.arange(64), np.flatnonzero(DIGITS.std(axis=0)))
    masked = FisherDiscriminant(preparation=Preparation(mask=mask)).fit(DIGITS, TARGETS)
    same_up_to_sign(masked.components_, FisherDiscriminant().fit(DIGITS[:, mask], TARGETS).components_, atol=1e-9)


# -- sliced inverse regression


def cubed(n=5000, p=20, noise=1.0):
    """Return samples, a unit direction, and a noisy cube of the projections on it."""
    rng = np.random.default_rng(0)
    direction = rng.normal(size=p)
    direction /= np.linalg.norm(direction)
    x = rng.normal(size=(n, p)) + 3
    return x, direction, ((x - 3) @ direction) ** 3 + noise * rng.normal(size=n)


def test_the_direction_of_a_noisy_cube_is_found():
    x, direction, numbers = cubed()
    model = by_options.fit(x, kind="sliced-inverse-regression", target=numbers, n_components=1)
    assert np.degrees(np.arccos(abs(model.components[0] @ direction))) < 5
    assert 0.5 < model.separation[0] < 1
    assert "between slices of the target lies so much of the variance along them: " in model.about_axes


def test_directions_are_those_of_the_dense_problem():
    x, _, numbers = cubed(600, 8)
    found = SlicedInverseRegression(n_slices=5).fit(x, numbers)
    slices = np.array_split(np.argsort(numbers), 5)
    means = np.array([x[some].mean(axis=0) - x.mean(axis=0) for some in slices])
    between = sum(len(some) * np.outer(mean, mean) for some, mean in zip(slices, means, strict=True))
    whole = (x - x.mean(axis=0)).T @ (x - x.mean(axis=0))
    values, vectors = np.linalg.eig(np.linalg.solve(whole, between))
    order = np.argsort(-values.real)[:4]
    np.testing.assert_allclose(found.separation_, values.real[order], rtol=1e-9)
    vectors = vectors.real[:, order]
    same_up_to_sign(found.components_, (vectors / np.linalg.norm(vectors, axis=0)).T, atol=1e-8)
    np.testing.assert_allclose(found.transform(x).var(axis=0), 1)


def test_equal_numbers_are_of_one_slice():
    x, _, numbers = cubed(600, 8)
    few = np.rint(numbers).clip(-1, 1)
    ours = SlicedInverseRegression().fit(x, few)
    assert ours.n_components_ == 2
    np.testing.assert_allclose(ours.components_, SlicedInverseRegression().fit(x, few.astype(int)).components_)
    mostly = np.where(np.arange(600) < 590, 0.0, 1.5)  # all slices but the last begin at 0
    assert SlicedInverseRegression().fit(x, mostly).n_components_ == 1
    with pytest.raises(RequestError, match="holds text such as 'a', and slices are of sorted numbers"):
        SlicedInverseRegression().fit(x, np.repeat(["a", "b"], 300))


@parametrize_with_checks([SlicedInverseRegression()])
@pytest.mark.filterwarnings("ignore::FutureWarning")  # scikit-learn announces changes of its own
def test_scikit_learn_contract_of_sliced_inverse_regression(estimator, check):
    if check.func.__name__.startswith("check_sample_weight"):
        pytest.skip("these checks take features that follow from others, of which directions are not determined")
    check(estimator)


def test_the_command_line_finds_discriminants_and_directions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", DIGITS.reshape(-1, 8, 8).astype("u1"))
    np.save("y.npy", TARGETS)
    found = commanded(
        "fit", "x.npy", "--kind", "fisher-discriminant", "--target", "y.npy", "--shrinkage", 0.1, "-o", "m.zarr"
    )
    assert "DiscriminantModel" in found
    assert "Fisher's discriminants of 10 classes, whose means vary along them" in commanded("inspect", "m.zarr")
    words = ("--kind", "sliced-inverse-regression", "--target", "y.npy", "--n-slices", 3, "--crop", "2:6,2:6")
    commanded("fit", "x.npy", *words, "-k", "1", "-o", "s.zarr")
    commanded("transform", "s.zarr", "x.npy", "-o", "scores.npy", "--whiten")
    scores = np.load("scores.npy")[:, 0]
    assert scores.var(ddof=1) == pytest.approx(1, rel=1e-5)
    labelled = [scores[some].mean() for some in (TARGETS < 3, TARGETS > 6)]  # the outer slices
    assert abs(np.diff(labelled)[0]) > 0.5
