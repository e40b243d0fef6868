"""Every option is declared once, as a field: it exists at every door by that name, with that default."""

from __future__ import annotations

import inspect

import click
import pytest

import streampca
from streampca.cli.commands import cli
from streampca.cli.options import KindCommand, names_of, parameter_of, run_of
from streampca.cli.run_file import make_run
from streampca.cli.sections import (
    COLUMNS,
    NOT_WRITTEN,
    PATHS,
    SECTIONS,
    CollectionSection,
    OutputSection,
    PrepareSection,
    RunSection,
)
from streampca.errors import RequestError
from streampca.fitting.hsic import HsicOptions
from streampca.kinds.description import default_of, entries_of, fields_of, hints_of
from streampca.kinds.hsic import HsicDescription
from streampca.kinds.neighbors import NeighborsDescription
from streampca.kinds.opening import Opening, OpeningOptions
from streampca.kinds.registry import KINDS, kind_class
from streampca.kinds.run import Run, RunOptions
from streampca.kinds.values import accepted, check_of
from streampca.models.pca import PCAModel
from streampca.preprocessing.run_options import FitOptions

FITTED = {"preparation", "options"}
# Functions of Python with the section that declares their parameters, and parameters that no section has.
FUNCTIONS = {
    "Preparation": (
        streampca.Preparation,
        PrepareSection,
        {"learned", "feature_map", "mapped", "grids", "precision", "weights"},
        set(),
    ),
    "neighbors": (streampca.neighbors, NeighborsDescription, FITTED | {"source"}, set()),
    "plan_neighbors": (streampca.plan_neighbors, NeighborsDescription, FITTED | {"source"}, set()),
}


def context(command, kind):
    """Click's context of a command with a kind of model."""
    return cli.commands[command].make_context(command, ["--kind", kind], resilient_parsing=True)


def estimator_of(kind):
    return getattr(streampca, kind_class(kind).__name__.removesuffix("Description"))


@pytest.mark.parametrize("cls", [Run, *map(kind_class, KINDS)])
def test_defaults_are_values_of_their_fields(cls):
    for name, field in fields_of(cls).items():
        if check_of(hints_of(cls)[name]) is None:
            assert accepted(hints_of(cls)[name], field.default) is field.default


@pytest.mark.parametrize(("function", "section", "own", "elsewhere"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_python_takes_what_is_declared(function, section, own, elsewhere):
    parameters, declared = inspect.signature(function).parameters, fields_of(section)
    assert set(parameters) - own == set(declared) - elsewhere
    for name in set(declared) & set(parameters) - {"source"}:
        assert parameters[name].default == default_of(declared[name]), name


def test_options_of_opening_and_running_are_those_declared():
    assert set(OpeningOptions.__annotations__) == set(fields_of(Opening))
    assert set(fields_of(CollectionSection)) == {"source", *fields_of(Opening), *COLUMNS}
    assert set(RunOptions.__annotations__) == {"run", *fields_of(Run)}
    assert set(fields_of(RunSection)) == {*fields_of(Run), "log_format", "metrics"}
    assert set(HsicOptions.__annotations__) == {*FitOptions.__annotations__, *fields_of(HsicDescription)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_of_a_kind_is_at_every_door(kind):
    """A parameter of the estimator, an option of ``fit`` and ``plan``, and a key of run files; with one default."""
    declared, defaults = (
        fields_of(kind_class(kind)),
        vars(make_run({"collection": {"source": "a"}, "model": {"kind": kind}}).model),
    )
    estimator = estimator_of(kind)()
    assert set(declared) <= set(estimator.get_params())
    for name, field in declared.items():
        assert getattr(estimator, name) == defaults[name] == default_of(field)
    for command in ("fit", "plan"):
        options = {option.name: option for option in context(command, kind).command.params}
        taken = {name for name in options if name.startswith("model__")}
        assert taken == {parameter_of(f"model.{name}") for name in ("kind", *declared)}
        for name in declared:
            option = options[parameter_of(f"model.{name}")]
            assert option.opts[-1] == f"--{name.replace('_', '-')}"
            assert (option.default is True) == (default_of(declared[name]) is True)
        assert ("collection__target" in options) == bool(kind_class(kind).target_rule)


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_of_a_kind_means_the_same_at_every_door(kind):
    """What a word of a command becomes is what Python holds."""
    words = {"n_components": ("all", None) if None in _accepted(kind) else ("3", 3), "random_state": ("7", 7),
             "tol": ("1e-3", 1e-3), "max_passes": ("4", 4), "gamma": ("0.5", 0.5), "n_neighbors": ("6", 6),
             "shrinkage": ("0", 0.0), "threshold": ("auto", "auto"), "n_clusters": ("4", 4)}  # fmt: skip
    for name, (text, value) in words.items():
        if name not in fields_of(kind_class(kind)):
            continue
        beside = {"model.kernel": "rbf"} if kind == "supervised-pca" and name == "gamma" else {}
        run = run_of({"collection.source": ("a",), "model.kind": kind, **beside, f"model.{name}": text})
        assert getattr(run.model, name) == value
        options = {key.partition(".")[2]: word for key, word in beside.items()}
        python = estimator_of(kind)(**options, **{name: value})
        assert getattr(python, name) == value


def _accepted(kind):
    return [None] if "None" in entries_of(kind_class(kind)).get("n_components", ("", ""))[0] else []


@pytest.mark.parametrize("name", ["write_scores", "write_reconstruction"])
def test_models_are_applied_by_options_that_are_declared(name):
    parameters = inspect.signature(getattr(PCAModel, name)).parameters
    shared = set(fields_of(OutputSection)) & set(parameters)
    assert shared >= {"whiten", "missing"}
    assert all(parameters[name].default == default_of(fields_of(OutputSection)[name]) for name in shared)


@pytest.mark.parametrize(("command", "sections"), [
    ("info", {"collection"}), ("copy", {"collection", "prepare"}), ("plan", {"collection", "prepare"}),
    ("neighbors", {"collection", "prepare", "neighbors"}), ("hsic", {"collection", "prepare", "hsic"}),
    ("fit", {"collection", "prepare", "run", "follow", "update"}), ("transform", {"collection"}),
])  # fmt: skip
def test_commands_take_what_is_declared(command, sections):
    taken = {option.name for option in cli.commands[command].params}
    for name in sections:
        omitted = {*NOT_WRITTEN, *COLUMNS} if name in ("run", "collection") else set()
        if name == "update":
            omitted = {"enabled"}  # concerns the directory of a run file
        if command == "hsic":
            omitted |= {"source"}
        cls = {**SECTIONS, "hsic": HsicDescription}[name]
        assert {parameter_of(f"{name}.{field}") for field in set(fields_of(cls)) - omitted} <= taken


def test_short_names_have_one_meaning():
    meanings = {}
    for name, command in cli.commands.items():
        for kind in KINDS if isinstance(command, KindCommand) else ["pca"]:
            shown = context(name, kind).command if isinstance(command, KindCommand) else command
            for option in shown.params:
                for short in getattr(option, "opts", ()):
                    if len(short) == 2:
                        meanings.setdefault(short, set()).add(option.opts[-1])
    assert meanings == {"-k": {"--n-components"}, "-o": {"--output"}, "-q": {"--quiet"}}


def test_every_key_that_is_a_path_is_declared():
    assert all(
        key == "apply" or key.partition(".")[2] in {field for cls in _classes(key) for field in fields_of(cls)}
        for key in PATHS
    )
    assert names_of("model.n_components") == ("-k", "--n-components")


def _classes(key):
    section = key.partition(".")[0]
    return [SECTIONS[section]] if section in SECTIONS else [kind_class(kind) for kind in KINDS]


@pytest.mark.parametrize("section", [*SECTIONS.values(), HsicDescription, Opening, *map(kind_class, KINDS)])
def test_first_sentences_are_help(section):
    """Every field has an entry, whose first sentence is short, and stands alone."""
    entries = entries_of(section)
    assert set(entries) == set(fields_of(section))
    for name, entry in entries.items():
        sentence = entry.first_sentence
        assert len(sentence) <= 130, name
        assert sentence.endswith((".", "...")), name
        assert not any(word in sentence for word in ("e.g.", "See ")), name


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
    chosen = run_of({"collection.source": ("a",), "collection.sel": words}).collection.sel
    assert chosen == {"well": "01", "site": "1e5", "level": 500, "z": (0.5, -2)}


def test_words_become_the_values_of_a_run_file():
    run = run_of(
        {
            "collection.source": ("a", "b"),
            "collection.select": ("c=0", "z=10:20"),
            "collection.patches": "16x8/4x2",
            "collection.coordinates": "ignore",
            "prepare.crop": "1:7,:-2",
            "prepare.scale": "0.5",
            "model.n_components": "all",
            "model.tol": None,
            "run.workers": "2",
            "run.checkpoint": False,
            "apply": None,
        }
    )
    assert run.collection.source == ["a", "b"]
    assert run.collection.select == {"c": 0, "z": (10, 20)}
    assert run.collection.patches == {"size": [16, 8], "step": [4, 2]}
    assert run.prepare.crop == [(1, 7), (None, -2)]
    assert run.prepare.scale == 0.5
    assert (run.model.n_components, run.model.tol) == (None, default_of(fields_of(kind_class("pca"))["tol"]))
    assert (run.run.workers, run.run.checkpoint) == (2, False)
