"""Each option of a run is declared once: commands and Python functions take it by that name, with that default."""

from __future__ import annotations

import inspect
import re

import click
import pytest

import streampca
from streampca.cli.command_line import run_of
from streampca.cli.commands import cli
from streampca.cli.options import (
    CollectionConfig,
    EmbedConfig,
    FitConfig,
    NeighborsConfig,
    OutputConfig,
    PrepareConfig,
    Run,
)
from streampca.errors import RequestError
from streampca.models.pca import PCAModel
from streampca.planning.request import Request
from streampca.readers import Opening

# Each function with the section whose options it takes, those options that it does not take, and its own parameters.
FITTED = {"source", "preparation", "output", "overwrite", "checkpoint", "cluster", "listener", "opening"}
PLANNED = {"source", "preparation", "shape", "dtype", "workers", "output", "opening"}
OF_KERNELS = {"kernel", "gamma", "degree", "coef0", "landmarks", "random_features", "landmark_choice"}
# n_components=None and random_state are scikit-learn's.
LEFT_OUT = {
    "n_components",
    "seed",
    "part",
    "scratch",
    "sample_weight",
    "update",
    "approximate",
    "kind",
    "target",
    "target_type",
    "shrinkage",
    "n_slices",
    "threshold",
    "n_folds",
    "metric",
} | OF_KERNELS
UPDATED = {
    "n_components",
    "half_life",
    "approximate",
    "memory",
    "sample_weight",
}  # None is what the model was fitted with
ESTIMATOR = {"n_components", "whiten", "preparation", "checkpoint", "random_state"}
FUNCTIONS = {
    "open_collection": (streampca.open_collection, CollectionConfig, set(), {"listing", "like", "listener"}),
    "Preparation": (
        streampca.Preparation,
        PrepareConfig,
        set(),
        {"learned", "feature_map", "mapped", "grids", "precision"},
    ),
    "fit": (streampca.fit, FitConfig, {"update", "approximate"}, FITTED),
    "plan": (streampca.plan, FitConfig, {"part", "seed", "update", "approximate"}, PLANNED),
    "Request": (
        Request,
        FitConfig,
        {"part", "sample_weight", "target", "update", "approximate"} | OF_KERNELS,
        {"workers", "output"},
    ),
    "neighbors": (streampca.neighbors, NeighborsConfig, set(), (FITTED - {"cluster"}) | {"seed", "memory"}),
    "embed": (streampca.embed, EmbedConfig, {"kind"}, FITTED | {"kind", "missing", "memory"}),
    "StreamingPCA": (streampca.StreamingPCA, FitConfig, LEFT_OUT, ESTIMATOR),
}


@pytest.mark.parametrize(("function", "section", "left_out", "own"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_python_takes_what_is_declared(function, section, left_out, own):
    parameters, declared = inspect.signature(function).parameters, section.model_fields
    assert set(parameters) - own == set(declared) - left_out - {"source"} | ({"source"} & set(parameters) - own)
    for name in set(declared) & set(parameters) - own - {"source"}:
        assert parameters[name].default == declared[name].default, name
        assert re.search(rf"^    (\w+, )*{name}(, [\w*]+)* ?:|^    (\w+, )*{name}, ", function.__doc__, re.MULTILINE), (
            name
        )


def test_options_of_opening_are_those_declared():
    assert set(Opening.__annotations__) == set(CollectionConfig.model_fields) - {"source"} | {"listing"}


@pytest.mark.parametrize("name", ["write_scores", "write_reconstruction"])
def test_models_are_applied_by_options_that_are_declared(name):
    parameters = inspect.signature(getattr(PCAModel, name)).parameters
    shared = set(OutputConfig.model_fields) & set(parameters)
    assert shared >= {"whiten", "overwrite"}
    assert all(parameters[name].default == OutputConfig.model_fields[name].default for name in shared)


@pytest.mark.parametrize(("command", "sections"), [
    ("info", {"collection"}), ("copy", {"collection", "prepare"}), ("plan", {"collection", "prepare"}),
    ("embed", {"collection", "prepare", "embed", "checkpoint"}),
    ("neighbors", {"collection", "prepare", "neighbors", "checkpoint"}),
    ("fit", {"collection", "prepare", "fit", "checkpoint"}), ("transform", {"collection", "checkpoint"}),
])  # fmt: skip
def test_commands_take_what_is_declared(command, sections):
    taken = {option.name for option in cli.commands[command].params}
    for name in sections:
        section = Run.model_fields[name].annotation
        assert {f"{name}__{field}" for field in section.model_fields} <= taken


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("collection.select", ("c=0", "c=3")),
        ("collection.sel", ("c=GFP", "c=DAPI")),
        ("collection.select", ("0=--5",)),
    ],
)
def test_words_that_do_not_fit_each_other(option, words):
    with pytest.raises(RequestError, match=r"takes two parts of|is neither AXIS=NUMBER nor AXIS=START:STOP"):
        run_of({"collection.source": ("a",), option: words})


@pytest.mark.parametrize("name", cli.commands)
def test_options_of_one_value_are_given_once(name):
    command = cli.commands[name]
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag and not option.multiple:
            with pytest.raises(click.UsageError, match=f"{option.opts[0]} takes one value and is given 2 times"):
                command.make_context(name, [option.opts[0], "1", option.opts[-1], "2"], **cli.context_settings)


def test_flags_and_parts_of_axes_may_be_repeated():
    words = ["a.zarr", "-o", "m.zarr", "--grey", "--grey", "--select", "c=0", "--select", "t=0:5"]
    assert cli.commands["fit"].make_context("fit", words, **cli.context_settings).params["prepare__grey"]


def test_texts_that_look_like_numbers_stay_as_they_are():
    words = ("well=01", "site=1e5", "level=500", "z=0.5:-2")
    found = run_of({"collection.source": ("a",), "collection.sel": words}).collection.sel
    assert found == {"well": "01", "site": "1e5", "level": 500, "z": (0.5, -2)}


def test_words_become_the_values_of_a_run_file():
    run = run_of(
        {
            "collection.source": ("a", "b"),
            "collection.select": ("c=0", "z=10:20"),
            "collection.patches": "16x8/4x2",
            "collection.coordinates": "ignore",
            "prepare.crop": "1:7,:-2",
            "fit.n_components": "all",
            "fit.tol": None,
            "execution.workers": 2,
            "model": None,
        }
    )
    assert run.collection.source == ["a", "b"]
    assert run.collection.select == {"c": 0, "z": (10, 20)}
    assert run.collection.patches.model_dump() == {"size": (16, 8), "step": (4, 2)}
    assert run.prepare.crop == [(1, 7), (None, -2)]
    assert (run.fit.n_components, run.fit.tol) == (None, FitConfig().tol)
    assert (run.execution.kind, run.execution.workers) == ("dask", 2)
