"""Run files: those of this repository, what YAML makes of what people type, and the way back."""

from __future__ import annotations

import gzip
import json
import math
import shutil
import struct
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import yaml
import zarr
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from shell import succeeded

from streampca.cli.config import load_run
from streampca.cli.options import keys_of
from streampca.cli.pipeline import check_together, execute
from streampca.cli.run_arguments import plan_of
from streampca.cli.run_file import make_run
from streampca.cli.schema import json_schema
from streampca.cli.sections import SECTIONS
from streampca.errors import ConfigError
from streampca.kinds.description import default_of, entries_of, fields_of
from streampca.kinds.registry import KINDS, kind_class

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
    plan = plan_of(run)
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
        "where": "label!=on", "fill_value": -32767, "dtype": "float32", "on_bad_file": "skip", "keep_orientation": True,
        "coordinates": "ignore", "duplicates": "first", "sample_weight": "w.npy", "target": "t.csv:class",
    },
    "apply": "m.zarr",
    "prepare": {
        "crop": [(0, 4), (1, 5)], "grey": True, "resize": (6, 7), "bin": 2, "mask": "mask.npy", "scale": 1e-3,
        "anomaly": "dayofyear", "detrend": True, "standardize": True, "normalize": "ratio",
    },
    "model": {"kind": "kernel-pca", "n_components": 1e-4, "kernel": "poly", "landmarks": 1000},
    "update": {"model": "m.zarr", "approximate": True, "enabled": True},
    "follow": {"enabled": True, "settle": 2.0, "interval": 60.0, "until": 500, "idle": 600.0},
    "neighbors": {"n_neighbors": 30, "method": "hnsw", "ef_search": 200, "random_state": 7},
    "run": {
        "memory": "2 GiB", "overwrite": True, "scratch": "/fast", "checkpoint": False, "checkpoint_every": 5.0,
        "require_same_bits": True, "workers": 4, "cluster": "slurm", "cluster_options": {"queue": "no", "cores": 1},
        "worker_memory": "4 GiB", "cluster_timeout": 90.0, "dashboard": True, "part": "3/16", "device": "cuda:1",
        "network": "25Gbit", "log_format": "json", "metrics": "night.prom",
    },
    "output": {
        "directory": "runs/1e3", "model": "m", "scores": "s.npy", "images": "i.zarr", "collection": "c.zarr",
        "graph": "g.zarr", "transform": True, "report": True, "whiten": True, "missing": "drop-samples",
        "n_components": 3, "residual": True, "whole": True, "examine": None, "figure_format": "svg",
        "figure_width": 85.0,
        "figure_data": True,
    },
}  # fmt: skip
# Values of the parameters of kinds, none of them a default.
OPTIONS = {
    "n_components": 3, "method": "covariance", "precision": "double", "tol": 1e-6, "max_passes": 8, "half_life": 1e3,
    "missing": "drop-samples", "random_state": 7, "kernel": "rbf", "gamma": 0.5, "degree": 2, "coef0": 0.5,
    "landmarks": 1000, "random_features": 512, "metric": "euclidean", "rank": 5, "target_type": "auto",
    "shrinkage": 0.5, "n_slices": 5, "threshold": 0.25, "n_folds": 4, "n_neighbors": 20, "graph": "g.zarr",
    "pca_components": 30, "reg": 0.1, "laplacian": "unnormalized", "n_clusters": 4, "largest_component": True,
    "tol_variance": 1e-3,
}  # fmt: skip
OF_KERNELS = {"kernel": "rbf"}
OF_A_KERNEL = ("gamma", "degree", "coef0", "landmarks", "random_features", "landmark_choice")
TOGETHER = {"rank": {"landmarks": 9}} | dict.fromkeys(OF_A_KERNEL, OF_KERNELS)


def data_of(key, kind="pca"):
    """Plain data of a run with one key of its section, and what it needs beside it."""
    section, _, name = key.partition(".")
    data = {"collection": {"source": "images"}}
    if section == "model":
        fields = fields_of(kind_class(kind))
        chosen = "farthest" if kind == "isomap" else "leverage"
        beside = {other: value for other, value in TOGETHER.get(name, {}).items() if other in fields and other != name}
        return data | {"model": {"kind": kind, **beside, name: OPTIONS.get(name, chosen)}}
    if not name:
        return data | {section: FULL[section]}
    return data | {section: {**data.get(section, {}), name: FULL[section][name]}}


TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
         "null": type(None)}  # fmt: skip


def holds(schema, value):
    """Return whether a value keeps a schema, by those words of JSON schema that ours uses."""
    if "anyOf" in schema:
        return any(holds(part, value) for part in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kind = schema["type"]
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    if kind == "object" and "properties" in schema:
        known = schema["properties"]
        return {*schema.get("required", ())} <= {*value} <= {*known} and all(
            holds(known[key], value[key]) for key in value
        )
    if kind == "array":
        parts = schema.get("prefixItems") or [schema["items"]] * len(value)
        return len(parts) == len(value) and all(map(holds, parts, value))
    return kind not in ("integer", "number") or (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and schema.get("exclusiveMinimum", -math.inf) < value < schema.get("exclusiveMaximum", math.inf)
    )


def test_schema_is_one_that_the_example_keeps_and_a_misspelt_key_breaks():
    schema = json_schema()
    assert schema["$schema"].startswith("https://json-schema.org/")
    plain = plain_of(FULL)
    assert holds(schema, plain)
    sections = schema["properties"]
    assert set(sections) == set(FULL)
    for name, section in SECTIONS.items():
        properties = sections[name]["properties"]
        assert {f"{name}.{key}" for key in properties} == {*keys_of(name)} - {"collection.allow_remote"}
        assert set(properties) == set(FULL[name])
        assert all(properties[key]["description"] == entries_of(section)[key].first_sentence for key in properties)
        assert not holds(schema, {**plain, name: {**plain[name], "nothing": 1}})
    models = {model["title"]: model["properties"] for model in sections["model"]["anyOf"]}
    assert set(models) == set(KINDS)
    for kind, properties in models.items():
        assert set(properties) == {"kind", *fields_of(kind_class(kind))}
    asked = models["pca"]
    assert {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1} in asked["tol"]["anyOf"]
    assert asked["max_passes"]["anyOf"] == [{"type": "integer", "minimum": 1}, {"type": "null"}]
    assert {"enum": [None, "all"]} in asked["n_components"]["anyOf"]
    for wrong in ({"tol": 4}, {"toll": 1e-3}, {"kind": "pcs"}, {"landmarks": 5}):
        assert not holds(schema, {**plain, "model": wrong})
    assert json.loads(succeeded("run", "--schema")) == plain_of(schema)


def plain_of(data):
    return json.loads(json.dumps(data))


def test_every_field_comes_back(tmp_path):
    run = make_run(FULL)
    again = load(run.to_yaml(), tmp_path)
    assert again == run
    assert again.collection.select == {0: 3, "c": (1, 2), "0": -1}
    assert [type(axis) for axis in again.collection.select] == [int, str, str]


KEYS = ["apply", *(key for section in SECTIONS for key in keys_of(section) if key != "collection.allow_remote")]


@pytest.mark.parametrize("key", KEYS)
def test_each_key_comes_back_alone(key, tmp_path):
    run = make_run(data_of(key))
    assert load(run.to_yaml(), tmp_path) == run


@pytest.mark.parametrize("kind", KINDS)
def test_each_parameter_of_a_kind_comes_back_alone(kind, tmp_path):
    for name, declared in fields_of(kind_class(kind)).items():
        run = make_run(data_of(f"model.{name}", kind))
        again = load(run.to_yaml(), tmp_path)
        assert again == run
        assert getattr(again.model, name) == data_of(f"model.{name}", kind)["model"][name]
        if name not in ("metric", "target_type", "gamma"):
            assert getattr(again.model, name) != default_of(declared)


# What YAML reads as something else when it stands bare, and what YAML cannot hold bare.
NAMES = ["no", "1e-4", "1_000", "0x10", "~", "null", "", " a ", "a: b", "a #b", "é\U0001f600", "\x85", "a\u2028b"]
NAMES += ["a\udcffb", "2024-01-01", "@l"]
RULES = ["elbow", "mp", "mle"]


@given(
    st.sampled_from(NAMES) | st.text(),
    st.none() | st.sampled_from(RULES) | st.integers(1) | st.floats(1e-300, 1, exclude_max=True),
)
def test_any_name_and_number_comes_back(tmp_path_factory, name, number):
    run = make_run({"collection": {"source": [name, "b"], "key": name}, "model": {"n_components": number}})
    again = load(run.to_yaml(), tmp_path_factory.getbasetemp())
    assert again == run
    assert type(again.model.n_components) is type(run.model.n_components)


def test_defaults_are_left_out():
    assert make_run({"collection": {"source": "a"}}).to_yaml() == "collection:\n  source: a\n"


@pytest.mark.parametrize("data", [
    {}, {"model": {"n_components": 3}}, {"model": {"kind": "isomap"}},
    {"apply": "m.zarr", "output": {"scores": "s.npy"}},
    {"model": {"n_components": 5}, "update": {"model": "m.zarr"}, "output": {"model": "n.zarr"}},
    {"run": {"workers": 2}},
], ids=str)  # fmt: skip
def test_resolved_run_files_list_defaults_and_stand_for_the_same_run(data, tmp_path):
    run = make_run({"collection": {"source": "a"}} | data)
    text = run.to_yaml(complete=True)
    again = load(text, tmp_path)
    assert again == run
    listed = yaml.safe_load(text)
    is_fit = not {"apply", "update"} & {*data}
    for name in ("collection", "output", "run", *(["prepare"] if is_fit else [])):
        assert {f"{name}.{key}" for key in listed[name]} == set(keys_of(name)) - {"collection.allow_remote"}
    if is_fit:
        assert set(listed["model"]) == {"kind", *fields_of(type(run.model))}
    for one in (run, again):  # neither is refused for keys that it does not take
        check_together(one)


def test_environment_variables_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("DATA", "/scans: new")
    monkeypatch.setenv("K", "20")
    monkeypatch.delenv("NOT_SET", raising=False)
    text = "collection: {source: ['${DATA}/${K}.npy', '$${K}', '$K', '${', a]}\nmodel: {n_components: '${K}'}\n"
    run = load(text, tmp_path)
    assert run.collection.source == ["/scans: new/20.npy", "${K}", "$K", "${", "a"]
    assert run.model.n_components == 20
    assert load(run.to_yaml(), tmp_path) == run
    with pytest.raises(ConfigError, match=r"output.model = '\$\{NOT_SET\}' names .* NOT_SET, which is not set; set it"):
        load("collection: {source: a}\noutput: {model: '${NOT_SET}'}\n", tmp_path)


def test_sections_are_frozen_and_closed():
    for name, section in SECTIONS.items():
        assert set(fields_of(section)) == set(entries_of(section))
        with pytest.raises(ConfigError, match=f"{name}.nothing is not a key of run files. Known here: "):
            make_run({"collection": {"source": "a"}, name: {"nothing": 1}})
        with pytest.raises(FrozenInstanceError):
            setattr(section(), next(iter(fields_of(section))), 1)


@pytest.mark.parametrize(("data", "message"), [
    ({"model": {"toll": 4}}, "model.toll is not a parameter of pca. Did you mean model.tol?"),
    ({"model": {"tol": 4}}, "model.tol = 4: give a number above 0 and below 1 or null (residual of a component, "
     "relative to its variance, at which method randomized stops; by default 1e-4)."),
    ({"model": {"landmarks": 4}}, "model.landmarks is not a parameter of pca, but of kernel-pca, classical-mds, "
     "supervised-pca, isomap, locally-linear-embedding and maximum-variance-unfolding; give kind: kernel-pca, or leave "
     "it out."),
    ({"model": {"kind": "isomapp"}}, f"model.kind = 'isomapp': give one of {', '.join(KINDS)}. Did you mean 'isomap'?"),
    ({"model": {"kind": "kernel-pca", "kernel": ["rbf"]}}, "model.kernel = ['rbf']: give a text (kernel: linear, poly, "
     "rbf, sigmoid, cosine, laplacian, distance, or precomputed for a matrix of inner products)."),
    ({"model": {"missing": "em", "n_components": "mp"}}, "n_components='mp' needs all variances, and missing='em' "
     "finds the leading ones; ask for a number such as 10, a fraction such as 0.9, or 'elbow'."),
    ({"run": {"n_components": 4}}, "run.n_components is not a key of run files. Did you mean output.n_components or "
     "model.n_components?"),
    ({"run": {"output": "m.zarr"}}, "run.output is not a key of run files. Known here: memory, overwrite, "),
    ({"run": {"checkpoint": "folder"}}, "run.checkpoint = 'folder': give true or false (save progress beside the "
     "outputs, to resume from)."),
    ({"fit": {"n_components": 4}}, "key 'fit' is not known. Known here: collection, "),
    ({"models": {}}, "key 'models' is not known. Did you mean 'model'?"),
    ({"output": 5}, "output = 5 is not a section; give keys under it (directory, model, "),
    ({"update": {"approximate": 1}}, "update.approximate = 1: give true or false (let components stand for a statistic "
     "that a model lacks)."),
    ({"apply": 5}, "apply = 5: give the path of a fitted model."),
], ids=str)  # fmt: skip
def test_keys_and_values_are_refused_by_name(data, message):
    with pytest.raises(ConfigError) as error:
        make_run({"collection": {"source": "a"}} | data, "run file run.yaml")
    assert str(error.value).startswith(f"run file run.yaml: {message}")


@pytest.mark.parametrize(("data", "message"), [
    ({"apply": "m.zarr", "model": {"tol": 1e-3}}, "model.tol is given, and a model is applied as it was fitted"),
    ({"apply": "m.zarr", "prepare": {"bin": 2}}, "prepare.bin is given, and a model is applied as it was fitted"),
    ({"apply": "m.zarr", "update": {"model": "n.zarr"}}, "update.model is given, and a model is applied"),
    ({"update": {"model": "m.zarr"}, "model": {"precision": "double"}}, "model.precision is given, and m.zarr is"),
    ({"update": {"model": "m.zarr"}, "model": {"kind": "isomap"}}, "model.kind is given, and m.zarr is updated as it"),
    ({"update": {"model": "m.zarr"}, "run": {"part": "1/2"}}, "run.part is given, and m.zarr is updated as it was"),
    ({"update": {"approximate": True}}, "update.approximate (--approximate) is an option of updating"),
], ids=str)  # fmt: skip
def test_keys_that_do_not_go_together(data, message):
    run = make_run({"collection": {"source": "a"}, "output": {"scores": "s.npy"}} | data)
    with pytest.raises(ConfigError) as error:
        check_together(run)
    assert message in str(error.value)


# -- what YAML makes of what people type


@pytest.mark.parametrize(("text", "value"), [
    ("1e-4", 1e-4), ("5e-1", 0.5), (".5", 0.5), ("0.95", 0.95), ("50", 50), ("'50'", 50), ("null", None), ("", None),
    ("0x10", 16), ("all", None), ("'all'", None),
])  # fmt: skip
def test_numbers_as_people_type_them(text, value, tmp_path):
    found = load(f"collection: {{source: a}}\nmodel:\n  n_components: {text}\n", tmp_path).model.n_components
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("text", "value"), [
    ("1e-4", 1e-4), ("1E-6", 1e-6), ("0.001", 0.001), (".5", 0.5), ("'1e-3'", 1e-3),
])  # fmt: skip
def test_tolerances_as_people_type_them(text, value, tmp_path):
    """PyYAML leaves 1e-4 a text."""
    for run in (
        load(f"collection: {{source: a}}\nmodel: {{tol: {text}, max_passes: 8}}\n", tmp_path),
        load("collection: {source: a}\n", tmp_path, f"model.tol={text}", "model.max_passes=8"),
    ):
        assert (run.model.tol, run.model.max_passes) == (value, 8)
        assert load(run.to_yaml(), tmp_path) == run


@pytest.mark.parametrize(("key", "values", "meaning"), [
    ("tol", ("0", "1", "-1e-4", "2", ".nan", ".inf", "small", "[1e-4]"), "residual of a component, relative"),
    ("max_passes", ("0", "-1", "2.5", "many", "1e1", "[2]"), 'largest number of passes of "randomized"'),
])  # fmt: skip
def test_tolerances_and_numbers_of_passes_that_are_none(key, values, meaning, tmp_path):
    for value in values:
        with pytest.raises(ConfigError, match=rf"model\.{key} = .*: give .* \({meaning}"):
            load("collection: {source: a}", tmp_path, f"model.{key}={value}")


@pytest.mark.parametrize("word", ["no", "yes", "on", "off", "true", "No", "FALSE"])
@pytest.mark.parametrize("key", [
    "model.n_components", "model.random_state", "run.memory", "model.tol", "model.max_passes", "prepare.bin",
    "output.n_components", "collection.source", "collection.key", "output.directory", "output.scores", "prepare.mask",
    "apply", "run.workers", "run.cluster_timeout", "run.cluster",
])  # fmt: skip
def test_yes_and_no_are_neither_numbers_nor_names(word, key, tmp_path):
    with pytest.raises(ConfigError, match=rf"^run file .*{key.rpartition('.')[2]}\b.*(True|False)|(True|False) is not"):
        load("collection: {source: a}", tmp_path, f"{key}={word}")


@pytest.mark.parametrize(("word", "value"), [("yes", True), ("off", False), ("true", True)])
def test_yes_and_no_are_flags(word, value, tmp_path):
    assert load("collection: {source: a}", tmp_path, f"output.transform={word}").output.transform is value


def test_quoted_no_is_a_name(tmp_path):
    assert load("collection: {source: 'no'}", tmp_path).collection.source == "no"


def test_overrides_apply_in_order_and_fill_empty_sections(tmp_path):
    run = load(
        "collection: {source: a}\nmodel:\n",
        tmp_path,
        "model.random_state=1",
        "model.random_state=2",
        "output.directory=runs/a=b",
    )
    assert (run.model.random_state, run.output.directory) == (2, "runs/a=b")


def test_merge_keys_are_not_doubled_keys(tmp_path):
    text = "collection: &c {source: a, key: k}\nmodel: {<<: {random_state: 1}, <<: {precision: double}}\n"
    run = load(text, tmp_path)
    assert (run.model.random_state, run.model.precision) == (1, "double")


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
        "collection: {source: x.npy}\nmodel: {n_components: 2}\noutput: {directory: out, transform: true}\n"
    )
    succeeded("run", "run.yaml", "-q")
    about = Path("out/scores.zarr/scores/zarr.json")
    first = about.read_text()
    assert json.loads(first)["attributes"]["model"] == "out/model.zarr"
    shutil.rmtree("out/scores.zarr")
    succeeded("run", "run.yaml", "-q")
    assert about.read_text() == first
