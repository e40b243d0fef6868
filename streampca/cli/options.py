"""Click options from the fields of kinds of model, of `Run` and of the sections of run files.

An option has the name of its field, with dashes; `FORMS` lists differences on the command line.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from ..kinds.description import default_of, entries_of, fields_of, hints_of
from ..kinds.hsic import HsicDescription
from ..kinds.registry import KINDS, kind_class, kinds_with
from ..kinds.values import members, written
from . import option_texts
from .help import PATH, SECTION_MARK, GroupedCommand, typed_value
from .run_file import COMMAND, RunFile, make_run
from .sections import NOT_WRITTEN, PATHS, SECTIONS

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_KIND = "pca"


class Decorator(Protocol):
    """Decorator that adds options to a command."""

    def __call__(self, command: Command, /) -> Command:
        """Return the command."""


@dataclass(frozen=True)
class Form:
    """An option's form on the command line, where it differs from its field.

    Attributes
    ----------
    metavar : str, optional
        Placeholder for the value in the help.
    names : tuple of str
        Names; by default the field's name, with dashes.
    help : str, optional
        Meaning, if a value is written in another form than in a run file; by default the first sentence of its entry.
    read : callable, optional
        Converts the text to a run file's value.
    flag : str or bool, optional
        Value of an option without an argument.
    multiple : bool
        True if the option can be repeated.
    """

    metavar: str | None = None
    names: tuple[str, ...] = ()
    help: str | None = None
    read: Callable[[Any], Any] | None = None
    flag: str | bool | None = None
    multiple: bool = False


FORMS = {
    "collection.source": Form(read=option_texts.one_or_list),
    "collection.key": Form("NAME"),
    "collection.sample_axes": Form("AXES", read=option_texts.read_axes),
    "collection.select": Form(
        "AXIS=ENTRY",
        help="Entry (c=0) or range (z=10:20) of another axis.",
        read=option_texts.read_selections,
        multiple=True,
    ),
    "collection.sel": Form(
        "AXIS=VALUE",
        help="Value (c=GFP) or range (time=1990-05:2000) of another axis.",
        read=option_texts.read_values,
        multiple=True,
    ),
    "collection.patches": Form(
        "SIZE", help="Windows of the image as samples: 16x16, or 16x16/8x8.", read=option_texts.read_patches
    ),
    "collection.samples": Form(
        "RANGE", help="Samples to take: START:STOP or START:STOP:STEP.", read=option_texts.read_samples
    ),
    "collection.where": Form("CONDITION"),
    "collection.fill_value": Form("NUMBER", read=option_texts.read_fill_value),
    "collection.dtype": Form("TYPE"),
    "collection.on_bad_file": Form("HOW"),
    "collection.duplicates": Form("HOW"),
    "collection.coordinates": Form(
        names=("--ignore-coordinates",), help="Take pixels by place, whatever latitudes say.", flag="ignore"
    ),
    "prepare.crop": Form("RANGES", help="Pixels to keep, such as 10:100,20:200 or 5:-5.", read=option_texts.read_crop),
    "prepare.resize": Form(
        "HxW", help="Size that every image is brought to, such as 64x64.", read=option_texts.read_size
    ),
    "prepare.bin": Form("Q"),
    "prepare.anomaly": Form("GROUP"),
    "prepare.normalize": Form("HOW"),
    "prepare.scale": Form("FACTOR", read=option_texts.number_or_word),
    "model.kind": Form("KIND"),
    "model.n_components": Form("K", ("-k", "--n-components")),
    "model.missing": Form("RULE"),
    "model.kernel": Form("NAME"),
    "model.method": Form("METHOD"),
    "model.landmarks": Form("M"),
    "model.landmark_choice": Form("HOW"),
    "model.target_type": Form("TYPE"),
    "model.precision": Form("PRECISION"),
    "model.laplacian": Form("WHICH"),
    "model.metric": Form("METRIC"),
    "run.memory": Form("SIZE"),
    "run.worker_memory": Form("SIZE"),
    "run.checkpoint": Form(names=("--no-checkpoint",), help="Save no progress to resume from.", flag=False),
    "run.checkpoint_every": Form("SECONDS"),
    "run.cluster": Form("KIND|URL"),
    "run.cluster_options": Form(
        "NAME=VALUE",
        ("--cluster-option",),
        help="Option of a cluster's jobs, such as queue=long.",
        read=option_texts.read_options,
        multiple=True,
    ),
    "run.cluster_timeout": Form("TIME"),
    "run.network": Form("RATE"),
    "run.part": Form("I/N"),
    "run.device": Form("NAME"),
    "output.missing": Form("RULE"),
    "follow.enabled": Form(names=("--follow",)),
    "follow.settle": Form("TIME"),
    "follow.interval": Form("TIME"),
    "follow.idle": Form("TIME"),
    "update.model": Form(names=("--update",)),
    "neighbors.method": Form("METHOD"),
    "hsic.target_type": Form("TYPE"),
    "hsic.kernel": Form("NAME"),
    "hsic.y_kernel": Form("NAME"),
    "hsic.method": Form("METHOD"),
    "hsic.estimator": Form("WHICH"),
}


# -- declarations of keys


def class_of(section: str, kind: str = DEFAULT_KIND) -> type:
    """Return the class that declares the keys of a section."""
    return kind_class(kind) if section == "model" else {**SECTIONS, "hsic": HsicDescription}[section]


def keys_of(section: str, kind: str = DEFAULT_KIND) -> list[str]:
    """Return the dotted keys of a section."""
    return [f"{section}.{name}" for name in fields_of(class_of(section, kind)) if name not in NOT_WRITTEN]


def names_of(key: str) -> tuple[str, ...]:
    """Return the names of an option on the command line."""
    names = FORMS.get(key, Form()).names
    return names or (f"--{key.rpartition('.')[2].replace('_', '-')}",)


# -- options of commands


def options(*keys: str, omit: tuple[str, ...] = ()) -> Decorator:
    """Add the options of dotted keys to a command, in this order; a section adds all its keys except `omit`."""
    single = [key for name in keys for key in ([name] if "." in name else keys_of(name)) if key not in omit]
    return combined(*(option(key) for key in single))


def option(key: str, *names: str, kind: str = DEFAULT_KIND, **changes: Any) -> Decorator:
    """Add the option of a dotted key to a command, optionally with other names or other settings of click."""
    section, _, name = key.partition(".")
    form, cls = FORMS.get(key, Form()), class_of(section, kind)
    annotation, default = written(hints_of(cls)[name]), default_of(fields_of(cls)[name])
    entry = entries_of(cls).get(name)
    text = form.help or (entry.as_written if entry else "")
    settings: dict[str, Any] = {"help": text, "metavar": form.metavar}
    if form.flag is not None:
        settings |= {"is_flag": True, "flag_value": form.flag, "default": None}
    elif annotation is bool:
        settings |= {"is_flag": True, "default": default}
    else:
        settings |= {"type": _type(annotation, name), "multiple": form.multiple}
        settings["metavar"] = PATHS.get(key) or form.metavar or _metavar(annotation)
        if default not in (None, ""):
            shown = f"{default:g}" if isinstance(default, float) else str(default)
            settings |= {"default": shown, "show_default": True}
    if isinstance(settings.get("type"), click.Choice) and settings["metavar"] is not None:
        choices = settings["type"].choices
        # The placeholder hides the choices, so the text has to name them.
        if not all(re.search(rf"\b{re.escape(choice)}\b", text) for choice in choices):
            settings["help"] = f"{text.removesuffix('.').partition(':')[0]}: {', '.join(choices)}."
    settings |= changes
    if key in PATHS and key != "prepare.scale":
        settings["type"] = PATH
    return click.option(*(names or names_of(key)), parameter_of(key), **settings)


def argument(key: str, metavar: str, **settings: Any) -> Decorator:
    """Add a positional argument for a dotted key."""
    return click.argument(parameter_of(key), metavar=metavar, type=PATH, **settings)


def combined(*decorators: Decorator) -> Decorator:
    """Combine decorators into one; `--help` shows the options in this order."""

    def add(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return add


def takes_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a command, as its first argument, the `RunFile` with the values of its parameters of dotted keys."""

    @wraps(command)
    def with_run(**parameters: Any) -> Any:
        values = {name: parameters.pop(name) for name in list(parameters) if SECTION_MARK in name}
        source = click.get_current_context().get_parameter_source
        # Without defaults, which the declarations have too: a run records which options were set.
        typed = {name: value for name, value in values.items() if source(name) is not _DEFAULT}
        keys = (name.removesuffix(SECTION_MARK).replace(SECTION_MARK, ".") for name in typed)
        return command(run_of(dict(zip(keys, typed.values(), strict=True))), **parameters)

    return with_run


def run_of(values: dict[str, Any]) -> RunFile:
    """Build a run from texts and numbers by dotted keys; None and () are omitted options."""
    data: dict[str, Any] = {"collection": {"source": []}}  # default for commands without a source
    for key, value in values.items():
        if value is None or value == ():
            continue
        read = FORMS.get(key, Form()).read
        section, _, name = key.rpartition(".")
        (data.setdefault(section, {}) if section else data)[name] = read(value) if read else value
    return make_run(data, COMMAND)


def words_of(section: str, only: str | None = None) -> list[str]:
    """Return the words of the current command line that set a section of its run, or one of its keys."""
    context, words = click.get_current_context(), []
    for parameter in context.command.params:
        name = parameter.name or ""
        if (
            not name.startswith(section + SECTION_MARK + (only or ""))
            or context.get_parameter_source(name) is not _TYPED
        ):
            continue
        value = context.params[name]
        if isinstance(parameter, click.Argument):
            words += list(value)
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            words.append(parameter.opts[0])
        else:
            words += [word for text in (value if parameter.multiple else [value]) for word in (parameter.opts[0], text)]
    return words


class KindCommand(GroupedCommand):
    """Command with the options of the kind of model that ``--kind`` names, and of no other kind."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.kind, self._shared = DEFAULT_KIND, self.params
        self.params = [*kind_options(self.kind), *self._shared]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of a copy of the command with the options of the kind."""
        command = copy.copy(self)  # the command itself is shared by all calls in a process
        command.kind = _kind_in(args)
        unused = unused_options(command.kind)
        shared = [parameter for parameter in self._shared if parameter.name not in unused]
        command.params = [*kind_options(command.kind), *shared]
        return super(KindCommand, command).make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse options of other kinds, with the names of these kinds."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = "n_components" if error.option_name == "-k" else error.option_name.lstrip("-").replace("-", "_")
            kinds = [kind for kind in KINDS if kind_class(kind).target_rule] if name == "target" else kinds_with(name)
            shared = [parameter.name for parameter in self._shared if error.option_name in parameter.opts]
            kinds = kinds or [kind for kind in KINDS if shared and shared[0] not in unused_options(kind)]
            if not kinds:
                raise
            names = f"{', '.join(kinds[:-1])} and {kinds[-1]}" if len(kinds) > 1 else kinds[0]
            raise click.UsageError(
                f"{error.option_name} is no option of kind {self.kind}, but of {names}: give --kind {kinds[0]}, or "
                "leave it out.",
                ctx,
            ) from None


def unused_options(kind: str) -> set[str]:
    """Return the names of click's parameters for input and running that a kind of model does not use."""
    cls, unused = kind_class(kind), set[str]()
    if not cls.grows:
        unused |= {"run.part", *keys_of("update"), *keys_of("follow")}
    if cls.uses_graph:  # all samples count alike, and are read in their order
        unused |= {"collection.sample_weight", "run.scratch", "run.device"}
    return {parameter_of(key) for key in unused}


def kind_options(kind: str) -> Iterable[click.Parameter]:
    """Return the option ``--kind`` and the options of a kind of model."""
    kind_option = click.option(
        "--kind", parameter_of("model.kind"), type=click.Choice([*KINDS]), default=DEFAULT_KIND, show_default=True,
        metavar="KIND", help="Kind of model, whose own options --help then shows.",
    )  # fmt: skip
    target = [option("collection.target")] if kind_class(kind).target_rule else []
    model = [option(key, kind=kind) for key in keys_of("model", kind)]

    def command() -> None: ...

    for add in (kind_option, *target, *model):
        add(command)
    return list(command.__click_params__)  # type: ignore[attr-defined]


_DEFAULT = click.core.ParameterSource.DEFAULT
_TYPED = click.core.ParameterSource.COMMANDLINE


def parameter_of(key: str) -> str:
    """Return the name of click's parameter for a dotted key; without a section the mark is at the end."""
    section, _, name = key.rpartition(".")
    return f"{section}{SECTION_MARK}{name}" if section else f"{name}{SECTION_MARK}"


def _kind_in(words: Sequence[str]) -> str:
    """Return the kind in the words of a command, which click has not parsed yet, or the default."""
    kind = typed_value(words, "--kind")
    return kind if kind in KINDS else DEFAULT_KIND


def _type(annotation: Any, name: str) -> Any:
    """Return click's type of an option: a choice, or text, which `make` checks later."""
    if name == "method" and annotation is str:
        return _MethodName()
    words = [word for member in members(annotation) if get_origin(member) is Literal for word in get_args(member)]
    others = [member for member in members(annotation) if get_origin(member) is not Literal]
    return click.Choice(words) if words and all(member is type(None) for member in others) else str


def _metavar(annotation: Any) -> str | None:
    """Return the placeholder of a number: X for a float, N for a whole number."""
    kinds = [get_args(member)[0] if hasattr(member, "__metadata__") else member for member in members(annotation)]
    return "X" if float in kinds else "N" if int in kinds else None


class _MethodName(click.types.StringParamType):
    """Name of a method, which a shell completes from the registry of methods."""

    name = "method"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Return the methods that start with the incomplete word."""
        from ..planning.registry import METHODS

        return [CompletionItem(name) for name in ("auto", *METHODS) if name.startswith(incomplete)]
