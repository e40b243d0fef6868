"""Doors: the command line, Python, a run file and an estimator give the same bits, or the same refusal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from shell import diagonal, typed

import streampca
from streampca.errors import StreampcaError

N, SHAPE = 90, (6, 5)
UNWEIGHTED = slice(60, 90)  # samples of weight 0
HOLE = (70, 2, 3)  # in one of them
ALL = {"n_components": 3}


@dataclass(frozen=True)
class Kind:
    """Options of a kind of model in Python, and the estimator with parameters that mean the same."""

    options: dict[str, Any]
    estimator: Any
    parameters: dict[str, Any] = field(default_factory=dict)


MAPPED = {"kind": "kernel-pca", "n_components": 3, "kernel": "rbf"}
KERNEL_PCA = {"kernel": "rbf", "gamma": "auto"}
KINDS = {
    "pca": Kind(ALL, streampca.StreamingPCA),
    "pca, randomized": Kind({**ALL, "method": "randomized"}, streampca.StreamingPCA, {"method": "randomized"}),
    "kernel-pca": Kind(MAPPED, streampca.KernelPCA, KERNEL_PCA),
    "kernel-pca, landmarks": Kind({**MAPPED, "landmarks": 40}, streampca.KernelPCA, KERNEL_PCA | {"landmarks": 40}),
    "kernel-pca, far landmarks": Kind(
        {**MAPPED, "landmarks": 20, "landmark_choice": "k-means++"},
        streampca.KernelPCA,
        KERNEL_PCA | {"landmarks": 20, "landmark_choice": "k-means++"},
    ),
    "kernel-pca, Fourier": Kind(
        {**MAPPED, "random_features": 64}, streampca.KernelPCA, KERNEL_PCA | {"random_features": 64}
    ),
    "kernel-pca, by matrix": Kind({**MAPPED, "method": "kernel-matrix"}, None),
    "classical-mds": Kind({"kind": "classical-mds", "n_components": 2}, None),
    "classical-mds, landmarks": Kind({"kind": "classical-mds", "n_components": 2, "landmarks": 40}, None),
    "supervised-pca": Kind(
        {"kind": "supervised-pca", "n_components": 2, "target": "labels.npy"}, streampca.SupervisedPCA
    ),
    "supervised-pca, kernel": Kind(
        {"kind": "supervised-pca", "n_components": 2, "target": "labels.npy", "kernel": "rbf", "landmarks": 40},
        streampca.SupervisedPCA,
        {"kernel": "rbf", "landmarks": 40},
    ),
    "discriminant": Kind(
        {"kind": "discriminant", "n_components": 2, "target": "labels.npy", "shrinkage": 0.1},
        streampca.FisherDiscriminant,
        {"shrinkage": 0.1},
    ),
    "sliced-inverse-regression": Kind(
        {"kind": "sliced-inverse-regression", "n_components": 2, "target": "numbers.npy", "n_slices": 5},
        streampca.SlicedInverseRegression,
        {"n_slices": 5},
    ),
    "supervised-components": Kind(
        {"kind": "supervised-components", "n_components": 2, "target": "numbers.npy", "n_folds": 3},
        streampca.SupervisedPrincipalComponents,
        {"n_folds": 3},
    ),
}
# How samples count and what is missing: source, options, steps of preparation.
SAMPLES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("x.npy", {}, {}),
    "weights": ("x.npy", {"sample_weight": "weights.npy"}, {}),
    "weights, standardized": ("x.npy", {"sample_weight": "weights.npy"}, {"standardize": True}),
    "missing where the weight is 0": ("holes.npy", {"sample_weight": "weights.npy"}, {}),
    "missing": ("holes.npy", {}, {}),
    "missing, left out": ("holes.npy", {"missing": "drop-samples"}, {}),
    "missing, left out, weights": ("holes.npy", {"missing": "drop-samples", "sample_weight": "weights.npy"}, {}),
    "a tiny budget": ("x.npy", {"memory": "1KiB"}, {}),
}


# What differed before all doors had one front half; of the other pairs a part is in the suite.
BESIDE = [
    (name, samples)
    for name in ("kernel-pca", "kernel-pca, landmarks", "classical-mds, landmarks", "supervised-pca, kernel")
    for samples in ("weights", "missing where the weight is 0", "missing, left out, weights")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with samples, of which some lack a value, weights, labels and numbers."""
    path, rng = tmp_path_factory.mktemp("doors"), np.random.default_rng(3)
    numbers = rng.normal(size=N)
    x = rng.normal(size=(N, 4)) @ rng.normal(size=(4, 30)) + 0.1 * rng.normal(size=(N, 30))
    x = (x + np.outer(numbers, np.linspace(-1, 1, 30))).reshape(N, *SHAPE).astype("f4")
    weights = rng.integers(1, 4, N).astype(float)
    weights[UNWEIGHTED] = 0
    np.save(path / "x.npy", x)
    np.save(path / "weights.npy", weights)
    np.save(path / "numbers.npy", numbers)
    np.save(path / "labels.npy", np.digitize(numbers, [-0.4, 0.4]))
    x[HOLE] = np.nan
    np.save(path / "holes.npy", x)
    return path


def answer(path, refusal):
    """Return the bits of a stored model, or why there is none."""
    if refusal is not None:
        return refusal
    group = zarr.open_group(path, mode="r")
    return {
        name: array[...].tobytes() for name, array in group.members(max_depth=None) if isinstance(array, zarr.Array)
    }


def by_python(source, options, steps, output, **run):
    preparation = streampca.Preparation(**steps) if steps else None
    try:
        streampca.fit(source, preparation=preparation, output=output, **options, **run)
    except StreampcaError as error:
        return answer(output, str(error))
    return answer(output, None)


def refusal_of(said):
    """Return the message of a command that was refused, without warnings before it."""
    return None if said.code == 0 else said.err.strip().splitlines()[-1].removeprefix("streampca: ")


def by_command(source, options, steps, output, *run):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return answer(
        output, refusal_of(typed("fit", "-q", source, *words, *[f"--{name}" for name in steps], *run, "-o", output))
    )


def by_run_file(source, options, steps, output, **execution):
    fitted = {"collection": {"source": source}, "fit": options, "output": {"model": output}}
    if steps:
        fitted["prepare"] = steps
    if execution:
        fitted["execution"] = execution
    with open(f"{output}.yaml", "w") as file:
        yaml.safe_dump(fitted, file)
    return answer(output, refusal_of(typed("run", "-q", f"{output}.yaml")))


def by_estimator(kind, source, options, steps, output):
    own = {name: options[name] for name in ("n_components", "memory", "missing") if name in options}
    estimator = kind.estimator(**own, **kind.parameters, random_state=0)
    if steps:
        estimator.set_params(preparation=streampca.Preparation(**steps))
    try:
        estimator.fit(source, options.get("target"), sample_weight=options.get("sample_weight"))
    except StreampcaError as error:
        return answer(output, str(error))
    estimator.model_.save(output)
    return answer(output, None)


@pytest.mark.parametrize(("name", "samples"), [*diagonal(KINDS, [*SAMPLES]), *BESIDE])
def test_the_doors_agree(name, samples, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    kind, (source, how, steps) = KINDS[name], SAMPLES[samples]
    options = {**kind.options, **how}
    expected = by_python(source, options, steps, str(tmp_path / "python.zarr"))
    assert isinstance(expected, str) or {"components", "explained_variance"} <= expected.keys()
    assert by_command(source, options, steps, str(tmp_path / "command.zarr")) == expected
    assert by_run_file(source, options, steps, str(tmp_path / "run.zarr")) == expected
    # KernelPCA has no `missing`, and plans for all components before it counts those that there are.
    if kind.estimator is not None and not (
        kind.estimator is streampca.KernelPCA and {"missing", "memory"} & how.keys()
    ):
        if isinstance(expected, str):  # an estimator writes nothing, which takes less memory
            expected = by_python(source, options, steps, None)
        assert by_estimator(kind, source, options, steps, str(tmp_path / "estimator.zarr")) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pca", "kernel-pca, landmarks", "kernel-pca, by matrix"])
def test_the_doors_agree_on_two_workers(name, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    options = KINDS[name].options | {"sample_weight": "weights.npy"}
    expected = by_python("x.npy", options, {}, str(tmp_path / "python.zarr"), cluster=2)
    assert by_command("x.npy", options, {}, str(tmp_path / "command.zarr"), "--workers=2") == expected
    assert by_run_file("x.npy", options, {}, str(tmp_path / "run.zarr"), kind="dask", workers=2) == expected


@pytest.mark.parametrize(("name", "samples"), diagonal(KINDS, [name for name in SAMPLES if "missing" not in name]))
def test_plans_agree(name, samples, folder, monkeypatch):
    """`plan` says the same in Python and by the command, and what `fit` then does."""
    monkeypatch.chdir(folder)
    source, how, steps = SAMPLES[samples]
    options = {**KINDS[name].options, **how}
    preparation = streampca.Preparation(**steps) if steps else None
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    said = typed("plan", source, *words, *[f"--{step}" for step in steps], "--json")
    if said.code:
        with pytest.raises(StreampcaError) as error:
            streampca.plan(source, preparation=preparation, output="m.zarr", **options)
        assert refusal_of(said) == str(error.value)
        return
    plan = streampca.plan(source, preparation=preparation, output="m.zarr", **options)
    shown = yaml.safe_load(said.out)
    own = plan.to_json()
    for key in ("method", "block_rows", "product_rows", "spans", "passes", "solver", "precision"):
        assert shown[key] == own[key]
