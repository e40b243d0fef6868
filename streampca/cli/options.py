"""Click options made of the fields of kinds of model, of `Run` and of the sections of run files.

A field is an option by its name, with dashes; `FORMS` says what differs on the command line.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import zip_longest
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from ..kinds.description import default_of, entries_of, fields_of, hints_of
from ..kinds.hsic import HsicDescription
from ..kinds.registry import KINDS, kind_class, kinds_with
from ..kinds.values import members, written
from . import option_texts
from .help import PATH, SECTION_MARK, GroupedCommand
from .run_file import COMMAND, RunFile, make_run
from .sections import NOT_WRITTEN, PATHS, SECTIONS

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_KIND = "pca"


class Decorator(Protocol):
    """Adds options to a command."""

    def __call__(self, command: Command, /) -> Command:
        """Return the command."""


@dataclass(frozen=True)
class Form:
    """An option's form on the command line, as far as its field does not say it.

    Attributes
    ----------
    metavar : str, optional
        Placeholder for the value in the help.
    names : tuple of str
        Names; by default the field's, with dashes.
    help : str, optional
        Meaning, where a value is written in another way than in a run file; by default the first sentence of its entry.
    read : callable, optional
        Returns a run file's value of the text.
    flag : str or bool, optional
        Value that the option stands for by being there.
    multiple : bool
        Whether it may be given several times.
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
    "run.part": Form("I/N"),
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
    """Add the options of dotted keys to a command, in this order; a section adds all that it declares but `omit`."""
    single = [key for name in keys for key in ([name] if "." in name else keys_of(name)) if key not in omit]
    return combined(*(option(key) for key in single))


def option(key: str, *names: str, kind: str = DEFAULT_KIND, **changes: Any) -> Decorator:
    """Add the option of one dotted key to a command, under other names or with other settings of click's if given."""
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
        settings["help"] = _with_choices(settings["help"], settings["type"].choices)
    settings |= changes
    if key in PATHS and key != "prepare.scale":
        settings["type"] = PATH
    return click.option(*(names or names_of(key)), parameter_of(key), **settings)


def argument(key: str, metavar: str, **settings: Any) -> Decorator:
    """Add a positional argument that gives a dotted key."""
    return click.argument(parameter_of(key), metavar=metavar, type=PATH, **settings)


def combined(*decorators: Decorator) -> Decorator:
    """Combine decorators into one; `--help` shows the options in this order."""

    def add(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return add


def takes_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command, as its first argument, the `RunFile` that its options and arguments of dotted keys stand for."""

    @wraps(command)
    def with_run(**given: Any) -> Any:
        keys = {name: _key(name) for name in given if SECTION_MARK in name}
        source = click.get_current_context().get_parameter_source
        values = {key: (name, given.pop(name)) for name, key in keys.items()}
        # Defaults are left to the declarations: so a run knows what was given.
        run = run_of({key: value for key, (name, value) in values.items() if source(name) is not _DEFAULT})
        return command(run, **given)

    return with_run


def run_of(given: dict[str, Any]) -> RunFile:
    """Build the run that texts and numbers stand for, given by dotted keys; None and () are options left out."""
    data: dict[str, Any] = {"collection": {"source": []}}  # of commands without a source
    for key, value in given.items():
        if value is None or value == ():
            continue
        read = FORMS.get(key, Form()).read
        section, _, name = key.rpartition(".")
        (data.setdefault(section, {}) if section else data)[name] = read(value) if read else value
    return make_run(data, COMMAND)


def words_of(section: str, only: str | None = None) -> list[str]:
    """Return the words of the current command that give a section of its run, or one key of it, as they were typed."""
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
    """A command that has the options of the kind of model that its words name, and of no other kind."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.kind, self._shared = DEFAULT_KIND, self.params
        self.params = [*kind_options(self.kind), *self._shared]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the command with the options of the kind that is named."""
        command = copy.copy(self)
        command.kind = _kind_in(args)
        unused = unused_options(command.kind)
        shared = [parameter for parameter in self._shared if parameter.name not in unused]
        command.params = [*kind_options(command.kind), *shared]
        return super(KindCommand, command).make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse options of other kinds, saying of which."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = "n_components" if error.option_name == "-k" else error.option_name.lstrip("-").replace("-", "_")
            kinds = [kind for kind in KINDS if kind_class(kind).target_rule] if name == "target" else kinds_with(name)
            shared = [parameter.name for parameter in self._shared if error.option_name in parameter.opts]
            kinds = kinds or [kind for kind in KINDS if shared and shared[0] not in unused_options(kind)]
            if not kinds:
                raise
            listed = f"{', '.join(kinds[:-1])} and {kinds[-1]}" if len(kinds) > 1 else kinds[0]
            raise click.UsageError(
                f"{error.option_name} is no option of kind {self.kind}, but of {listed}: give --kind {kinds[0]}, or "
                "leave it out.",
                ctx,
            ) from None


def unused_options(kind: str) -> set[str]:
    """Return the names of click's parameters of input and running that a kind of model has no use for."""
    cls, unused = kind_class(kind), set[str]()
    if not cls.grows:
        unused |= {"run.part", *keys_of("update"), *keys_of("follow")}
    if cls.uses_graph:  # all samples count alike, and are read in their order
        unused |= {"collection.sample_weight", "run.scratch"}
    return {parameter_of(key) for key in unused}


def kind_options(kind: str) -> Iterable[click.Parameter]:
    """Return the options of a kind of model, and that which names it."""
    named = click.option(
        "--kind", parameter_of("model.kind"), type=click.Choice([*KINDS]), default=DEFAULT_KIND, show_default=True,
        metavar="KIND", help="Kind of model, whose own options --help then shows.",
    )  # fmt: skip
    target = [option("collection.target")] if kind_class(kind).target_rule else []
    own = [option(key, kind=kind) for key in keys_of("model", kind)]

    @combined(named, *target, *own)
    def command() -> None: ...

    return reversed(command.__click_params__)  # type: ignore[attr-defined]


_DEFAULT = click.core.ParameterSource.DEFAULT
_TYPED = click.core.ParameterSource.COMMANDLINE


def parameter_of(key: str) -> str:
    """Return the name of click's parameter that gives a dotted key; without a section its mark is at the end."""
    section, _, name = key.rpartition(".")
    return f"{section}{SECTION_MARK}{name}" if section else f"{name}{SECTION_MARK}"


def _key(parameter: str) -> str:
    return parameter.removesuffix(SECTION_MARK).replace(SECTION_MARK, ".")


def _kind_in(words: Sequence[str]) -> str:
    """Return the kind that the words of a command name, or the default."""
    kind = DEFAULT_KIND
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        if word == "--kind" or word.startswith("--kind="):
            kind = after if word == "--kind" else word.partition("=")[2]
    return kind if kind in KINDS else DEFAULT_KIND


def _type(annotation: Any, name: str) -> Any:
    """Return click's type of an option: a choice, or text, which the declaration checks."""
    if name == "method" and annotation is str:
        return _MethodName()
    words = [word for member in members(annotation) if get_origin(member) is Literal for word in get_args(member)]
    others = [member for member in members(annotation) if get_origin(member) is not Literal]
    return click.Choice(words) if words and all(member is type(None) for member in others) else str


def _with_choices(text: str, choices: Sequence[str]) -> str:
    """Return a help text that names all choices, in place of what it says of them."""
    if all(re.search(rf"\b{re.escape(choice)}\b", text) for choice in choices):
        return text
    return f"{text.removesuffix('.').partition(':')[0]}: {', '.join(choices)}."


def _metavar(annotation: Any) -> str | None:
    """Return the placeholder of a number."""
    kinds = [get_args(member)[0] if hasattr(member, "__metadata__") else member for member in members(annotation)]
    return "X" if float in kinds else "N" if int in kinds else None


class _MethodName(click.types.StringParamType):
    """Name of a method, among those of the registry when a shell completes it."""

    name = "method"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Return the methods that begin so."""
        from ..planning.registry import METHODS

        return [CompletionItem(name) for name in ("auto", *METHODS) if name.startswith(incomplete)]
