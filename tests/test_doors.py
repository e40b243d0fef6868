"""Doors: the command line, Python, a run file and an estimator give the same bits, or the same refusal."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from PIL import Image
from shell import diagonal, pictures, succeeded, typed

import streampca
from streampca.errors import Door, OutputError, RequestError, StreampcaError, messages_at, worded
from streampca.events import FileSkipped, Kept
from streampca.kinds.registry import KINDS as KIND_NAMES
from streampca.kinds.registry import kind_class

N, SHAPE = 90, (6, 5)
UNWEIGHTED = slice(60, 90)  # samples of weight 0
HOLE = (70, 2, 3)  # in one of them
ALL = {"n_components": 3}


@dataclass(frozen=True)
class Kind:
    """A kind of model with its options, and the target that it learns from."""

    kind: str
    options: dict[str, Any]
    target: str | None = None

    def described(self, **more: Any) -> Any:
        """Return the description, with further options."""
        return kind_class(self.kind)(**{**self.options, **more})

    def estimator(self, **more: Any) -> Any:
        """Return the estimator of the same parameters."""
        cls = getattr(streampca, kind_class(self.kind).__name__.removesuffix("Description"))
        return cls(**{**self.options, **more})


MAPPED = {"n_components": 3, "kernel": "rbf", "gamma": "auto"}
LEARNED = {"n_components": 2}
KINDS = {
    "pca": Kind("pca", ALL),
    "pca, randomized": Kind("pca", {**ALL, "method": "randomized"}),
    "kernel-pca": Kind("kernel-pca", MAPPED),
    "kernel-pca, landmarks": Kind("kernel-pca", {**MAPPED, "landmarks": 40}),
    "kernel-pca, far landmarks": Kind("kernel-pca", {**MAPPED, "landmarks": 20, "landmark_choice": "k-means++"}),
    "kernel-pca, Fourier": Kind("kernel-pca", {**MAPPED, "random_features": 64}),
    "kernel-pca, by matrix": Kind("kernel-pca", {**MAPPED, "method": "kernel-matrix"}),
    "classical-mds": Kind("classical-mds", LEARNED),
    "classical-mds, landmarks": Kind("classical-mds", {**LEARNED, "landmarks": 40}),
    "supervised-pca": Kind("supervised-pca", LEARNED, "labels.npy"),
    "supervised-pca, kernel": Kind("supervised-pca", {**LEARNED, "kernel": "rbf", "landmarks": 40}, "labels.npy"),
    "fisher-discriminant": Kind("fisher-discriminant", {**LEARNED, "shrinkage": 0.1}, "labels.npy"),
    "sliced-inverse-regression": Kind("sliced-inverse-regression", {**LEARNED, "n_slices": 5}, "numbers.npy"),
    "supervised-principal-components": Kind(
        "supervised-principal-components", {**LEARNED, "n_folds": 3}, "numbers.npy"
    ),
    "isomap": Kind("isomap", {"n_components": 2, "n_neighbors": 12}),
    "locally-linear-embedding": Kind("locally-linear-embedding", {"n_neighbors": 12, "reg": 0.1}),
    "spectral-clustering": Kind("spectral-clustering", {"n_clusters": 3, "n_neighbors": 12}),
    "action-respecting-embedding": Kind("action-respecting-embedding", {"n_neighbors": 8}, "labels.npy"),
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
    for samples in ("weights", "missing where the weight is 0", "missing, left out, weights")
    for name in ("kernel-pca", "kernel-pca, landmarks", "classical-mds, landmarks", "supervised-pca, kernel")
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
    members = zarr.open_group(path, mode="r").members(max_depth=None)
    return {
        name: member[...].tobytes() if isinstance(member, zarr.Array) else dict(member.attrs)
        for name, member in members
    }


def split(how):
    """Return what is a parameter of the kind, a column, and a part of the run, of how samples are fitted."""
    model = {name: value for name, value in how.items() if name == "missing"}
    columns = {name: value for name, value in how.items() if name == "sample_weight"}
    return model, columns, {name: value for name, value in how.items() if name == "memory"}


@messages_at(Door.UNKNOWN)
def by_python(kind, source, how, steps, output, **run):
    preparation = streampca.Preparation(**steps) if steps else None
    model, columns, given = split(how)
    options = {**columns, **given, "preparation": preparation, "output": output, **run}
    try:
        streampca.fit(source, kind.described(**model), target=kind.target, **options)
    except StreampcaError as error:
        return answer(output, str(error))
    return answer(output, None)


def refusal_of(said):
    """Return the message of a command that was refused, without warnings before it."""
    return None if said.code == 0 else said.err.strip().splitlines()[-1].removeprefix("streampca: ")


def words_of(kind, how, steps):
    """Return the words of a command that mean the same."""
    target = {} if kind.target is None else {"target": kind.target}
    options = {"kind": kind.kind, **target, **kind.options, **how}
    return [
        *(f"--{name.replace('_', '-')}={value}" for name, value in options.items()),
        *(f"--{name}" for name in steps),
    ]


def by_command(kind, source, how, steps, output, *run):
    return answer(output, refusal_of(typed("fit", "-q", source, *words_of(kind, how, steps), *run, "-o", output)))


def by_run_file(kind, source, how, steps, output, **run):
    model, columns, given = split(how)
    target = {} if kind.target is None else {"target": kind.target}
    fitted = {
        "collection": {"source": source, **columns, **target},
        "model": {"kind": kind.kind, **kind.options, **model},
        "output": {"model": output},
        "prepare": steps,
        "run": {**given, **run},
    }
    with open(f"{output}.yaml", "w") as file:
        yaml.safe_dump(fitted, file)
    said = refusal_of(typed("run", "-q", f"{output}.yaml"))
    return answer(output, None if said is None else said.removeprefix(f"run file {output}.yaml: "))


@messages_at(Door.UNKNOWN)
def by_estimator(kind, source, how, steps, output):
    model, columns, given = split(how)
    preparation = {"preparation": streampca.Preparation(**steps)} if steps else {}
    run = streampca.Run(**given, output=output)
    try:
        kind.estimator(**model, **preparation, run=run).fit(source, kind.target, **columns)
    except StreampcaError as error:
        return answer(output, str(error))
    return answer(output, None)


@pytest.mark.parametrize(
    ("name", "samples"),
    [
        *(row for row in diagonal(KINDS, [*SAMPLES]) if row.values not in BESIDE),
        *(pytest.param(*row, marks=[pytest.mark.slow] * (at % 5 > 0)) for at, row in enumerate(BESIDE)),
    ],
)
def test_the_doors_agree(name, samples, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    kind, (source, how, steps) = KINDS[name], SAMPLES[samples]
    asked = (kind, source, how, steps)
    expected = by_python(*asked, str(tmp_path / "python.zarr"))
    assert isinstance(expected, str) or {"components", "explained_variance"} <= expected.keys()
    said = by_command(*asked, str(tmp_path / "command.zarr"))
    unweighted = kind_class(kind.kind).uses_graph and "sample_weight" in how
    with messages_at(Door.COMMAND_LINE):
        shown = worded(expected) if isinstance(expected, str) else expected
    assert f"--sample-weight is no option of kind {kind.kind}, but of pca" in said if unweighted else said == shown
    assert by_run_file(*asked, str(tmp_path / "run.zarr")) == shown
    if kind.kind == "classical-mds" or unweighted:
        return  # its coordinates have other signs as an estimator; and those take no weights
    assert by_estimator(*asked, str(tmp_path / "estimator.zarr")) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "doors"),
    [
        ("pca", ("command", "run file")),
        ("kernel-pca, landmarks", ("command",)),
        ("kernel-pca, by matrix", ("run file",)),
    ],
)
def test_the_doors_agree_on_two_workers(name, doors, folder, tmp_path, monkeypatch):
    """All doors for one kind, and one for others: how a door passes workers on does not depend on the kind."""
    monkeypatch.chdir(folder)
    asked = (KINDS[name], "x.npy", {"sample_weight": "weights.npy"}, {})
    expected = by_python(*asked, str(tmp_path / "python.zarr"), workers=2)
    if "command" in doors:
        assert by_command(*asked, str(tmp_path / "command.zarr"), "--workers=2") == expected
    if "run file" in doors:
        assert by_run_file(*asked, str(tmp_path / "run.zarr"), workers=2) == expected


@pytest.mark.parametrize(("name", "samples"), diagonal(KINDS, [name for name in SAMPLES if "missing" not in name]))
def test_plans_agree(name, samples, folder, monkeypatch):
    """`plan` says the same in Python and by the command, and what `fit` then does."""
    monkeypatch.chdir(folder)
    kind, (source, how, steps) = KINDS[name], SAMPLES[samples]
    preparation = streampca.Preparation(**steps) if steps else None
    model, columns, given = split(how)
    options = {**columns, **given, "target": kind.target, "preparation": preparation, "output": "m.zarr"}
    said = typed("plan", source, *words_of(kind, how, steps), "--json")
    if said.code:
        with pytest.raises(StreampcaError) as error, messages_at(Door.COMMAND_LINE):
            streampca.plan(source, kind.described(**model), **options)
        is_option = "sample_weight" not in how or not kind_class(kind.kind).uses_graph
        with messages_at(Door.COMMAND_LINE):
            assert (refusal_of(said) == str(error.value)) == is_option
        return
    plan = streampca.plan(source, kind.described(**model), **options)
    shown, own = yaml.safe_load(said.out), yaml.safe_load(json.dumps(plan.to_json()))
    if "seconds" in own:  # which the command predicts by rates that it measures, and so what is said of them
        for name in ("seconds", "why", "rejected"):
            del shown[name], own[name]
    assert shown == own


@pytest.mark.parametrize("name", ["pca", "kernel-pca, landmarks", "fisher-discriminant", "isomap"])
def test_the_model_of_an_earlier_run_is_used_again(name, folder, tmp_path, monkeypatch):
    """By the option `reuse`; that of another fit is refused by the first difference."""
    monkeypatch.chdir(folder)
    kind, events = KINDS[name], []
    how = {"target": kind.target, "output": str(tmp_path / "m.zarr"), "reuse": True, "listener": events.append}
    created = [streampca.fit("x.npy", kind.described(), **how).provenance["created"] for _ in range(2)]
    assert created[0] == created[1]
    assert [event.path for event in events if isinstance(event, Kept)] == [f"{tmp_path}/m.zarr"]
    with pytest.raises(OutputError, match=r"m\.zarr was fitted with random_state 0 and this run has 5"):
        streampca.fit("x.npy", kind.described(random_state=5), **how)
    np.save(tmp_path / "y.npy", np.load("x.npy")[::-1])
    with pytest.raises(OutputError, match=r"m\.zarr was fitted with (source|another (target|feature map))"):
        streampca.fit(tmp_path / "y.npy", kind.described(), **how)
    again = streampca.fit("x.npy", kind.described(random_state=5), **{**how, "overwrite": True})
    assert again.provenance["created"] >= created[0]
    assert isinstance(streampca.load(tmp_path / "m.zarr"), type(again))


def test_scores_of_a_run_are_those_of_python(folder, tmp_path, monkeypatch):
    """Also of samples that the fit left out, which have NaN."""
    monkeypatch.chdir(folder)
    words = ["--set", f"output.directory={tmp_path / 'out'}", "--set", "output.transform=true"]
    run = tmp_path / "run.yaml"
    run.write_text("collection: {source: holes.npy}\nmodel: {n_components: 3, missing: drop-samples}\n")
    assert typed("run", run, "-q", *words).code == 0
    model = streampca.fit("holes.npy", KINDS["pca"].described(missing="drop-samples"))
    model.write_scores("holes.npy", tmp_path / "s.zarr")
    scores = [zarr.open_group(path)["scores"][...] for path in (tmp_path / "out" / "scores.zarr", tmp_path / "s.zarr")]
    np.testing.assert_array_equal(*scores)
    assert np.isnan(scores[0]).all(axis=1).nonzero()[0].tolist() == [HOLE[0]]


# -- one answer for what only one door, or no door, has a use for


@pytest.mark.slow
def test_figures_and_the_numbers_behind_them_are_the_same(folder, tmp_path, monkeypatch):
    """Every file of a report's figures and data, as bytes: by the function, the command and a run file."""
    monkeypatch.chdir(tmp_path)
    how = {"figure_format": "pdf", "figure_width": 85.0, "examine": 60}
    x = str(folder / "x.npy")
    streampca.fit(x, n_components=3, output="m.zarr")
    streampca.write_report("m.zarr", "python.html", figures="python/figures", data="python/data", **how)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in how.items()]
    succeeded("report", "m.zarr", "-o", "command.html", "--figures=command/figures", "--data=command/data", *words)
    output = {"directory": "run", "report": True, "figure_data": True, **how}
    Path("r.yaml").write_text(yaml.safe_dump({"collection": {"source": x}, "apply": "m.zarr", "output": output}))
    succeeded("run", "r.yaml", "-q")
    files = {door: {path.name: path.read_bytes() for kind in ("figures", "data") for path in Path(door, kind).iterdir()}
             for door in ("python", "command", "run")}  # fmt: skip
    assert len(files["python"]) > 10
    assert files["command"] == files["run"] == files["python"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (streampca.PCA(2, whiten=True), "whiten"),
        (streampca.SpectralClustering(2, affinity="precomputed"), "affinity"),
        (streampca.SpectralEmbedding(2, affinity="rbf"), "affinity"),
        (streampca.ClassicalMDS(2, metric_params={"p": 3}), "metric_params"),
        (streampca.KernelPCA(2, fit_inverse_transform=True), "fit_inverse_transform"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_parameters_of_the_estimator_alone_are_not_dropped(folder, kind, name):
    for function in (streampca.fit, streampca.plan):
        with pytest.raises(RequestError, match=f"{name}=.* is a parameter of the estimator alone"):
            function(folder / "x.npy", kind)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (None, {"checkpoint": 3}, "checkpoint = 3: give the path or URL of a folder to save progress in, or None."),
        (streampca.Isomap(graph=5), {}, "graph = 5: give a NeighborGraph, the path of one that was stored, or None."),
        (None, {"memory": "5"}, "memory = '5': memory size '5' has no unit and would be less than 1 MiB; write 5GiB"),
        (None, {"worker_memory": "5 XB"}, "worker_memory = '5 XB': memory size '5 XB' is not understood"),
        (None, {"network": "10"}, "network = '10': rate '10' is not understood; write bits or bytes a second, such as"),
        (None, {"network": "1bit"}, "network = '1bit' is below 1Mbit, the slowest link of a worker; give its rate."),
        (None, {"network": "10Gbit"}, "network is an option of clusters; give workers or cluster with it, or leave"),
        (streampca.Isomap(), {"scratch": "s"}, "kind 'isomap' makes no scratch copy (scratch='s'); leave it out."),
    ],
    ids=[
        "checkpoint",
        "graph",
        "memory",
        "worker_memory",
        "network",
        "slow network",
        "network alone",
        "scratch",
    ],
)
def test_wrong_values_are_named_with_their_key(folder, kind, options, said):
    with pytest.raises(RequestError, match=f"^{re.escape(said)}"):
        streampca.fit(folder / "x.npy", kind, **options)


@pytest.mark.parametrize("name", [name for name in KIND_NAMES if not kind_class(name).target_rule])
def test_every_kind_is_planned_for_data_that_are_not_here(name):
    """Kinds with a target need it: their plans depend on its values."""
    assert streampca.plan(shape=(1000, 8, 8), kind=kind_class(name)()).memory_estimate.total > 0


@pytest.mark.slow
def test_a_run_that_is_shared_makes_its_graph_too(folder, tmp_path):
    data = {
        "collection": {"source": str(folder / "x.npy")}, "model": {"n_components": 3},
        "run": {"workers": 2, "scratch": str(tmp_path), "memory": "64MiB"},
        "output": {"directory": str(tmp_path / "out"), "transform": True, "graph": str(tmp_path / "graph.zarr")},
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(data))
    assert typed("run", tmp_path / "run.yaml", "-q").code == 0
    scores, graph = tmp_path / "out" / "scores.zarr", streampca.load(tmp_path / "graph.zarr")
    np.testing.assert_array_equal(graph.indices, streampca.neighbors(scores).indices)


@pytest.mark.parametrize("name", ["fit", "neighbors", "hsic", "copy"])
def test_images_that_a_preparation_leaves_out_are_told(name, tmp_path):
    """Whatever is done with the others: there is one front half."""
    (tmp_path / "images").mkdir()
    for number in range(7):
        shape = (8, 5) if number == 3 else (8, 12)
        Image.fromarray(pictures(1, *shape, seed=number)[0]).save(tmp_path / "images" / f"{number}.png")
    how = {"preparation": streampca.Preparation(crop=((0, 6), (0, 8))), "on_bad_file": "skip"}
    more = {
        "copy": {"output": tmp_path / "c.zarr"},
        "neighbors": {"n_neighbors": 2},
        "hsic": {"y": np.arange(6.0)[:, None]},
    }.get(name, {})
    events = []
    getattr(streampca, name)(tmp_path / "images", **how, **more, listener=events.append)
    assert [Path(event.path).name for event in events if isinstance(event, FileSkipped)] == ["3.png"]
