"""Run files: those of this repository, what YAML makes of what people type, and the way back."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import yaml
import zarr
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import BaseModel
from shell import succeeded

from streampca.cli.config import json_schema, load_run, make_run
from streampca.cli.from_config import cluster_of, plan_run
from streampca.cli.options import Run, Section, section_of
from streampca.cli.pipeline import _check_embedding, execute
from streampca.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


def images(n=200, height=18, width=16):
    return np.random.default_rng(0).integers(0, 256, (n, height, width), dtype=np.uint8)


def small_data(name, folder):
    """Data of the kind that a run file of this repository is for."""
    if name == "mnist":
        path = folder / "train-images-idx3-ubyte.gz"
        with gzip.open(path, "wb") as file:
            file.write(struct.pack(">4B3I", 0, 0, 8, 3, *images().shape) + images().tobytes())
    elif name == "faces":
        path = folder / "faces"
        for number, image in enumerate(images(80)):
            (path / f"s{number // 10}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path / f"s{number // 10}" / f"{number % 10}.pgm")
    else:
        path = folder / "digits.zarr"
        zarr.save(path, images())
    return str(path)


def test_there_are_run_files():
    assert {path.stem for path in CONFIGS} >= {"demo", "faces", "mnist"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_run_files_of_this_repository(path, tmp_path, undrawn):
    source = small_data(path.stem, tmp_path)
    run = load_run(str(path), [f"collection.source={source}", f"output.directory={tmp_path / 'run'}"])
    plan = plan_run(run)
    assert plan.method in ("covariance", "dual")
    assert plan.memory_estimate.total <= plan.memory
    assert run.output.transform
    assert run.output.report
    result = execute(run)
    assert result.plan == plan
    assert (tmp_path / "run" / "scores.zarr").is_dir()


def load(text, tmp_path, *overrides):
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_run(str(path), overrides)


# -- the way back: what is printed is read as the same run


FULL = {
    "collection": {
        "source": ["a", "b"], "key": "no", "sample_axes": [1, "x"], "select": {0: 3, "c": (1, 2), "0": -1},
        "sel": {"level": 500, "time": (1990, 2000)},
        "patches": {"size": (4, 5), "step": (2, 3)}, "samples": [0, None, 2], "labels": "t.csv:kind",
        "where": "label!=on", "fill_value": -32767, "on_bad_file": "skip", "keep_orientation": True,
        "coordinates": "ignore", "duplicates": "first",
    },
    "model": "m.zarr",
    "prepare": {
        "crop": [(0, 4), (1, 5)], "grey": True, "resize": (6, 7), "bin": 2, "mask": "mask.npy", "scale": 1e-3,
        "anomaly": "dayofyear",
        "detrend": True,
        "standardize": True,
        "weights": "coslat",
        "normalize": "ratio",
    },
    "fit": {
        "kind": "discriminant", "target": "t.csv:class", "target_type": "classes", "shrinkage": 0.5,
        "n_slices": 5, "threshold": 0.25, "n_folds": 4, "metric": "euclidean",
        "kernel": "polynomial", "gamma": 0.5, "degree": 2, "coef0": 0.5, "landmarks": 1000, "random_features": 512,
        "landmark_choice": "leverage",
        "n_components": 1e-4, "method": "covariance", "memory": "2 GiB", "precision": "double",
        "tol": 1e-6, "max_passes": 8, "half_life": 1e3, "missing": "drop-samples", "sample_weight": "w.npy",
        "scratch": "/fast", "update": "m.zarr", "approximate": True, "part": "3/16", "seed": 7,
    },
    "embed": {
        "kind": "spectral-clustering", "n_components": 3, "n_neighbors": 20, "graph": "g.zarr", "actions": "t.csv:move",
        "pca_components": 30, "landmarks": "all", "landmark_choice": "farthest", "reg": 0.1, "gamma": 0.5,
        "laplacian": "unnormalized", "n_clusters": 4, "largest_component": True, "seed": 3,
    },
    "follow": {"enabled": True, "settle": 2.0, "interval": 60.0, "until": 500, "idle": 600.0},
    "neighbors": {"n_neighbors": 30, "method": "hnsw", "ef_search": 200},
    "output": {
        "directory": "runs/1e3", "model": "m", "scores": "s.npy", "images": "i.zarr", "collection": "c.zarr",
        "graph": "g.zarr",
        "transform": True, "report": True, "whiten": True, "missing": "drop-samples", "n_components": 3,
        "residual": True, "whole": True, "overwrite": True,
    },
    "execution": {
        "kind": "dask", "cluster": "slurm", "options": {"queue": "no", "cores": 1},
        "workers": 4, "memory": "4 GiB", "timeout": 90.0, "dashboard": True,
    },
    "checkpoint": {"enabled": False, "every": 5.0, "require_same_bits": True},
}  # fmt: skip


def fields(section=Run, place=()):
    """Dotted keys of every field, as tuples."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, (*place, name))
        else:
            yield (*place, name)


def test_schema_is_one_that_the_example_keeps_and_a_misspelt_key_breaks():
    schema = json_schema()
    assert schema["$schema"].startswith("https://json-schema.org/")
    sections = schema["$defs"]
    assert set(sections["CollectionConfig"]["properties"]) == set(FULL["collection"])
    assert all(section["additionalProperties"] is False for section in sections.values())
    described = (field for section in sections.values() for field in section["properties"].values())
    assert sum("description" in field for field in described) > 25
    asked = sections["FitConfig"]["properties"]
    assert asked["tol"].items() >= {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}.items()
    assert asked["max_passes"]["anyOf"] == [{"type": "integer", "minimum": 1}, {"type": "null"}]


def test_every_field_comes_back(tmp_path):
    run = make_run(FULL)
    again = load(run.to_yaml(), tmp_path)
    assert again == run
    assert again.collection.select == {0: 3, "c": (1, 2), "0": -1}
    assert [type(axis) for axis in again.collection.select] == [int, str, str]


@pytest.mark.parametrize("place", [place for place in fields() if place[-1] != "allow_remote"], ids=".".join)
def test_each_field_comes_back_alone(place, tmp_path):
    data = {"collection": {"source": "images"}}
    value = FULL
    for name in place:
        value = value[name]
    target = data
    for name in place[:-1]:
        target = target.setdefault(name, {})
    target[place[-1]] = value
    run = make_run(data)
    assert load(run.to_yaml(), tmp_path) == run


# What YAML reads as something else when it stands bare, and what YAML cannot hold bare.
NAMES = ["no", "1e-4", "1_000", "0x10", "~", "null", "", " a ", "a: b", "a #b", "é\U0001f600", "\x85", "a\u2028b"]
NAMES += ["a\udcffb", "2024-01-01", "@l"]
RULES = ["elbow", "mp", "mle"]


@given(
    st.sampled_from(NAMES) | st.text(),
    st.none() | st.sampled_from(RULES) | st.integers(1) | st.floats(1e-300, 1, exclude_max=True),
)
def test_any_name_and_number_comes_back(tmp_path_factory, name, number):
    run = make_run({"collection": {"source": [name, "b"], "key": name}, "fit": {"n_components": number}})
    again = load(run.to_yaml(), tmp_path_factory.getbasetemp())
    assert again == run
    assert type(again.fit.n_components) is type(run.fit.n_components)


def test_defaults_are_left_out():
    assert make_run({"collection": {"source": "a"}}).to_yaml() == "collection:\n  source: a\n"


@pytest.mark.parametrize("data", [
    {}, {"fit": {"n_components": 3}}, {"embed": {"kind": "isomap"}}, {"model": "m.zarr", "output": {"scores": "s.npy"}},
    {"fit": {"update": "m.zarr", "n_components": 5}, "output": {"model": "n.zarr"}},
    {"execution": {"kind": "dask", "workers": 2}},
], ids=str)  # fmt: skip
def test_resolved_run_files_list_defaults_and_stand_for_the_same_run(data, tmp_path):
    run = make_run({"collection": {"source": "a"}} | data)
    text = run.to_yaml(complete=True)
    again = load(text, tmp_path)
    assert again == run
    listed = yaml.safe_load(text)
    for name in ("collection", "output", "execution", "checkpoint", *(["prepare", "fit"] if not data else [])):
        assert set(listed[name]) == set(section_of([name]).model_fields) - {"allow_remote"}
    for one in (run, again):  # neither is refused for keys that it does not take
        _check_embedding(one)
        assert cluster_of(one) == cluster_of(run)
    if run.fit.update is not None:
        assert again.fit.model_fields_set <= {"update", "n_components", "memory"}


def test_environment_variables_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("DATA", "/scans: new")
    monkeypatch.setenv("K", "20")
    monkeypatch.delenv("NOT_SET", raising=False)
    text = "collection: {source: ['${DATA}/${K}.npy', '$${K}', '$K', '${', a]}\nfit: {n_components: '${K}'}\n"
    run = load(text, tmp_path)
    assert run.collection.source == ["/scans: new/20.npy", "${K}", "$K", "${", "a"]
    assert run.fit.n_components == 20
    assert load(run.to_yaml(), tmp_path) == run
    with pytest.raises(ConfigError, match=r"output.model = '\$\{NOT_SET\}' names .* NOT_SET, which is not set; set it"):
        load("collection: {source: a}\noutput: {model: '${NOT_SET}'}\n", tmp_path)


def test_sections_are_frozen_and_closed():
    for section in (Run, *(field.annotation for field in Run.model_fields.values())):
        if isinstance(section, type) and issubclass(section, Section):
            assert section.model_config["frozen"]
            assert section.model_config["extra"] == "forbid"
            assert section is Run or all(field.description for field in section.model_fields.values())


# -- what YAML makes of what people type


@pytest.mark.parametrize(("text", "value"), [
    ("1e-4", 1e-4), ("5e-1", 0.5), (".5", 0.5), ("0.95", 0.95), ("50", 50), ("'50'", 50), ("null", None), ("", None),
    ("1.0", 1.0), ("0x10", 16),
])  # fmt: skip
def test_numbers_as_people_type_them(text, value, tmp_path):
    found = load(f"collection: {{source: a}}\nfit:\n  n_components: {text}\n", tmp_path).fit.n_components
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("text", "value"), [
    ("1e-4", 1e-4), ("1E-6", 1e-6), ("0.001", 0.001), (".5", 0.5), ("'1e-3'", 1e-3),
])  # fmt: skip
def test_tolerances_as_people_type_them(text, value, tmp_path):
    """PyYAML leaves 1e-4 a text."""
    for run in (
        load(f"collection: {{source: a}}\nfit: {{tol: {text}, max_passes: 8}}\n", tmp_path),
        load("collection: {source: a}\n", tmp_path, f"fit.tol={text}", "fit.max_passes=8"),
    ):
        assert (run.fit.tol, run.fit.max_passes) == (value, 8)
        assert load(run.to_yaml(), tmp_path) == run


@pytest.mark.parametrize(("key", "values", "meaning"), [
    ("tol", ("0", "1", "-1e-4", "2", ".nan", ".inf", "small", "null", "[1e-4]"), "residual of a component, relative"),
    ("max_passes", ("0", "-1", "2.5", "many", "1e1", "[2]"), "largest number of passes of method randomized"),
])  # fmt: skip
def test_tolerances_and_numbers_of_passes_that_are_none(key, values, meaning, tmp_path):
    for value in values:
        with pytest.raises(ConfigError, match=rf"fit\.{key} = .*; correct it \({meaning}"):
            load("collection: {source: a}", tmp_path, f"fit.{key}={value}")


@pytest.mark.parametrize("word", ["no", "yes", "on", "off", "true", "No", "FALSE"])
@pytest.mark.parametrize("key", [
    "fit.n_components", "fit.seed", "fit.memory", "fit.tol", "fit.max_passes", "prepare.bin", "output.n_components",
    "collection.source", "collection.key", "output.directory", "output.scores", "prepare.mask", "model",
])  # fmt: skip
def test_yes_and_no_are_neither_numbers_nor_names(word, key, tmp_path):
    with pytest.raises(ConfigError, match=rf"{key} = (True|False)"):
        load("collection: {source: a}", tmp_path, f"{key}={word}")


@pytest.mark.parametrize(("word", "value"), [("yes", True), ("off", False), ("true", True)])
def test_yes_and_no_are_flags(word, value, tmp_path):
    assert load("collection: {source: a}", tmp_path, f"output.transform={word}").output.transform is value


def test_quoted_no_is_a_name(tmp_path):
    assert load("collection: {source: 'no'}", tmp_path).collection.source == "no"


def test_overrides_apply_in_order_and_fill_empty_sections(tmp_path):
    run = load("collection: {source: a}\nfit:\n", tmp_path, "fit.seed=1", "fit.seed=2", "output.directory=runs/a=b")
    assert (run.fit.seed, run.output.directory) == (2, "runs/a=b")


def test_merge_keys_are_not_doubled_keys(tmp_path):
    text = "collection: &c {source: a, key: k}\nfit: {<<: {seed: 1}, <<: {precision: double}}\n"
    run = load(text, tmp_path)
    assert (run.fit.seed, run.fit.precision) == (1, "double")


@pytest.mark.parametrize("text", [
    "collection: {source: a, source: b}",
    "collection: {source: a}\ncollection: {source: b}",
    "collection: {source: a, select: {0: 1, 0: 2}}",
    "collection: {source: [a, {b: 1, b: 2}]}",
])  # fmt: skip
def test_doubled_keys_at_any_depth(text, tmp_path):
    with pytest.raises(ConfigError, match=r"is given twice, the second time in line \d; keep one"):
        load(text, tmp_path)


def test_recursive_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="recursive"):
        load("collection: &a {source: *a}", tmp_path)


def test_scores_name_the_model_that_the_same_run_has_fitted(tmp_path, monkeypatch):
    """By its path, as in a run that was stopped between the two and finds the model there."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).normal(size=(30, 5, 4)))
    Path("run.yaml").write_text(
        "collection: {source: x.npy}\nfit: {n_components: 2}\noutput: {directory: out, transform: true}\n"
    )
    succeeded("run", "run.yaml", "-q")
    about = Path("out/scores.zarr/scores/zarr.json")
    first = about.read_text()
    assert json.loads(first)["attributes"]["model"] == "out/model.zarr"
    shutil.rmtree("out/scores.zarr")
    succeeded("run", "run.yaml", "-q")
    assert about.read_text() == first
