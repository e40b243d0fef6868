"""Click options built from the declarations in `options`, and the `Run` built from a command's words."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from .help import PATH, SECTION_MARK
from .options import PATHS, CommandLine, Run, command_line_of, field_of, names_of, section_of

Command = TypeVar("Command", bound=Callable[..., Any])


class Decorator(Protocol):
    """Adds options to a command."""

    def __call__(self, command: Command, /) -> Command:
        """Return the command."""


def options(*keys: str, omit: tuple[str, ...] = ()) -> Decorator:
    """Add the options of dotted keys to a command, in this order; a section adds all that it declares but `omit`."""
    single = [key for name in keys for key in ([name] if "." in name else _keys(name)) if key not in omit]
    return combined(*(option(key) for key in single))


def option(key: str, *names: str, **changes: Any) -> Decorator:
    """Add the option of one dotted key to a command, under other names or with other settings of click's if given."""
    field, line = field_of(key), command_line_of(field_of(key))
    text = line.help or field.description or ""
    if line.choices is not None:
        text = f"{text}: {', '.join(line.choices())}"
    settings: dict[str, Any] = {"help": sentence(text), "metavar": line.metavar}
    if line.flag is not None:
        settings |= {"is_flag": True, "flag_value": line.flag, "default": None}
    elif field.annotation is bool:
        settings |= {"is_flag": True, "default": field.default}
    else:
        settings |= {"type": _type(field, line), "multiple": line.multiple}
        if field.default is not None and not field.is_required():
            settings |= {"default": field.default, "show_default": True}
    settings |= changes
    if settings["metavar"] in PATHS:
        settings["type"] = PATH
    return click.option(*(names or names_of(key)), _parameter(key), **settings)


def argument(key: str, metavar: str, **settings: Any) -> Decorator:
    """Add a positional argument that gives a dotted key."""
    return click.argument(_parameter(key), metavar=metavar, type=PATH, **settings)


def combined(*decorators: Decorator) -> Decorator:
    """Combine decorators into one; `--help` shows the options in this order."""

    def add(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return add


def takes_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command, as its first argument, the `Run` that its options and arguments of dotted keys stand for."""

    @wraps(command)
    def with_run(**given: Any) -> Any:
        keys = {name: _key(name) for name in given if _SEPARATOR in name}
        source = click.get_current_context().get_parameter_source
        values = {key: (name, given.pop(name)) for name, key in keys.items()}
        # Defaults are left to the declarations: so a run knows what was given.
        run = run_of({key: value for key, (name, value) in values.items() if source(name) is not _DEFAULT})
        return command(run, **given)

    return with_run


def run_of(given: dict[str, Any]) -> Run:
    """Build the run that texts and numbers stand for, given by dotted keys; None and () are options left out."""
    from .config import COMMAND, make_run

    data: dict[str, Any] = {"collection": {"source": []}}  # of commands without a source
    for key, value in given.items():
        if value is None or value == ():
            continue
        read = command_line_of(field_of(key)).read
        section, _, name = key.rpartition(".")
        (data.setdefault(section, {}) if section else data)[name] = read(value) if read else value
    if "execution" in data:
        data["execution"]["kind"] = "dask"
    return make_run(data, COMMAND)


def words_of(section: str, only: str | None = None) -> list[str]:
    """Return the words of the current command that give a section of its run, or one key of it, as they were typed."""
    context, words = click.get_current_context(), []
    for parameter in context.command.params:
        name = parameter.name or ""
        if not name.startswith(section + _SEPARATOR + (only or "")) or context.get_parameter_source(name) is not _TYPED:
            continue
        value = context.params[name]
        if isinstance(parameter, click.Argument):
            words += list(value)
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            words.append(parameter.opts[0])
        else:
            words += [word for text in (value if parameter.multiple else [value]) for word in (parameter.opts[0], text)]
    return words


_SEPARATOR = SECTION_MARK  # in names of click's parameters, for the dot of a key; without a section it is at the end
_DEFAULT = click.core.ParameterSource.DEFAULT
_TYPED = click.core.ParameterSource.COMMANDLINE


def _parameter(key: str) -> str:
    section, _, name = key.rpartition(".")
    return f"{section}{_SEPARATOR}{name}" if section else f"{name}{_SEPARATOR}"


def _key(parameter: str) -> str:
    return parameter.removesuffix(_SEPARATOR).replace(_SEPARATOR, ".")


def _keys(section: str) -> list[str]:
    return [f"{section}.{name}" for name in section_of([section]).model_fields]


def _type(field: FieldInfo, line: CommandLine) -> Any:
    """Return click's type of a field: a choice or text; numbers and ranges are checked by the declaration."""
    if line.choices is not None:
        return _Choice(line.choices)
    if line.read:
        return str
    kinds = (field.annotation, *get_args(field.annotation))
    literal = next((kind for kind in kinds if get_origin(kind) is Literal), None)
    return str if literal is None else click.Choice(get_args(literal))


class _Choice(click.Choice[str]):
    """A choice among names that are looked up for each command: rows may be added to registries meanwhile."""

    def __init__(self, names: Callable[[], tuple[str, ...]]) -> None:
        super().__init__(names())
        self._names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value if it is one of the names."""
        self.choices = self._names()
        return super().convert(value, param, ctx)


def sentence(description: str) -> str:
    """Return a description as the help shows it."""
    return f"{description[0].upper()}{description[1:]}."
