"""Reports of a command for schedulers and monitors: exit codes, events as lines of JSON, and a file of metrics.

References
----------
Prometheus's text format, https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from .. import __version__
from ..errors import RESUMABLE, OutputError, Stopped, StreampcaError, first_line, readable
from ..events import BlockDone, Event, FileSkipped, Listener, PassFinished, PassStarted, Planned, Warned, describe
from .help import typed_value

if TYPE_CHECKING:
    from .. import Model
    from .sections import RunSection

EXIT_CODES = {
    0: "done",
    1: "failed: the data, a model, memory, the disk or a cluster; or the model is stored and did not converge",
    2: "refused: an option, a key of the run file, or a value of one, is wrong",
    RESUMABLE: "stopped, and the same command resumes it",
    Stopped.exit_code: "stopped, and there is nothing to resume",
}
UNFINISHED = "Nothing is left to resume; unfinished outputs were removed or marked as unfinished."

METRICS = {
    "exit_status": "Exit code of the command.",
    "start_time_seconds": "Unix time at which the command started.",
    "end_time_seconds": "Unix time at which the command ended.",
    "duration_seconds": "Elapsed time of the command.",
    "cpu_seconds": "Processor time of the command and of processes that it started and that have ended.",
    "samples": "Samples of the largest pass.",
    "passes": "Passes over the data that were completed.",
    "read_bytes": "Stored bytes of the blocks that were read or written, over all passes.",
    "peak_memory_bytes": "Largest resident memory of the process.",
    "warnings": "Warnings, and files that were left out.",
    "model_samples": "Samples of the model that was fitted.",
    "error_bound_max": "Largest error bound of a component, relative to its variance.",
    "angle_bound_max_radians": "Largest bound on the angle from a component to the true one.",
}
_OURS = ('{\n "streampca": ', "# HELP streampca_")  # beginnings of files of metrics, in JSON and Prometheus's format
_BORDER = re.compile(r"(?<!^)(?=[A-Z])")  # between the words of a class's name


def as_typed(*words: str) -> str:
    """Return a command as it is typed in a shell, from its words."""
    return shlex.join(("streampca", *words))


def ending(error: BaseException) -> tuple[str, int]:
    """Return the message, in one line, and the exit code that a command ends with after an error."""
    match error:
        case click.ClickException():
            context = getattr(error, "ctx", None)
            remedy = f" See: {context.command_path} --help" if context else ""
            return error.format_message().replace("\n", " ") + remedy, error.exit_code
        case Stopped(exit_code=code):
            remedy = f"Resume with: {as_typed(*sys.argv[1:])}" if code == RESUMABLE else UNFINISHED
            return f"{error} {remedy}", code
        case StreampcaError():
            return str(error), error.exit_code
        case MemoryError():
            return f"out of memory: {first_line(error)}. Give a smaller --memory.", 1
        case OSError():
            what = f"{error.filename or 'a file'}: {error.strerror or error}"
            return f"{what}; check the path, the disk and permissions.", 1
    return f"stopped by SIGINT. {UNFINISHED}", Stopped.exit_code


class Monitor:
    """Log and metrics of one command, from its first word to its exit code.

    Parameters
    ----------
    words : sequence of str
        Words of the command line. Its log format and file of metrics hold for errors in the words themselves, too.
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._command = words[0] if words else ""
        self._log_format, self._metrics = typed_value(words, "--log-format"), typed_value(words, "--metrics")
        self._is_listening = False
        self._started, self._began, self._processor = time.time(), time.perf_counter(), _processor_seconds()
        self._counts = dict.fromkeys(("samples", "passes", "read_bytes", "peak_memory_bytes", "warnings"), 0)
        self._of_model: dict[str, float] = {}

    @contextmanager
    def listening(self, run: RunSection, *, quiet: bool) -> Iterator[Listener]:
        """Yield the listener of a command: it counts events, and shows progress or writes the log.

        Raises
        ------
        OutputError
            If the file of metrics cannot be written, or is another file.
        """
        from .terminal import Progress

        self._log_format, self._metrics = run.log_format, run.metrics
        if run.metrics is not None:
            _check_metrics(run.metrics)
        self._is_listening = True
        shown = nullcontext(_quiet_log if quiet else log) if run.log_format == "json" else Progress(quiet=quiet)
        with shown as show, self._reporting_logged():

            def listener(event: Event) -> None:
                self._count(event)
                show(event)

            yield listener

    @contextmanager
    def _reporting_logged(self) -> Iterator[None]:
        """Count the warnings that are logged inside, and Python's; write them in the format of the log."""
        logger, handler = logging.getLogger("streampca"), logging.Handler(logging.WARNING)
        show = warnings.showwarning

        def report(record: logging.LogRecord) -> None:
            self._counts["warnings"] += 1
            if self._log_format == "json":
                log(Warned(record.getMessage()))
            elif logging.lastResort is not None and not logging.root.handlers:  # as without this handler
                logging.lastResort.handle(record)

        def report_warning(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            self._counts["warnings"] += 1
            if self._log_format == "json":
                log(Warned(f"{' '.join(str(message).split())} ({category.__name__} in {filename}, line {lineno})"))
            else:
                show(message, category, filename, lineno, file, line)

        handler.emit = report  # type: ignore[method-assign]
        logger.addHandler(handler)
        warnings.showwarning = report_warning
        try:
            yield
        finally:
            warnings.showwarning = show
            logger.removeHandler(handler)

    def note_model(self, model: Model) -> None:
        """Note the samples and bounds of a model that was fitted."""
        self._of_model = {"model_samples": model.n_samples}
        if model.basis is model:  # the principal components of an embedding are an intermediate result
            bounds = {"error_bound_max": model.basis.error_bound, "angle_bound_max_radians": model.basis.angle_bound}
            self._of_model |= {name: float(bound.max()) for name, bound in bounds.items() if len(bound)}

    def complain(self, message: str, code: int) -> None:
        """Write the line of an error to standard error."""
        if self._log_format == "json":
            _write_line("error", "failed", {"exit_code": code}, message)
        else:
            click.echo(f"streampca: {readable(message)}", err=True)

    def finish(self, code: int) -> None:
        """Write the file of metrics, if there is to be one; a failure is a warning, as the outputs are complete."""
        # A command that only prints, such as --help, listens to nothing and succeeds.
        if self._metrics is None or not (self._is_listening or code):
            return
        from ..storage.outputs import staged  # which loads numpy and Zarr

        try:
            _check_metrics(self._metrics)
            with staged(self._metrics) as partial:
                Path(partial).write_text(self._text(self._metrics, code), encoding="utf-8")
        except StreampcaError as error:
            if self._is_listening:  # else the path itself may be the error, which was told
                warning = Warned(f"the metrics could not be written: {error}")
                log(warning) if self._log_format == "json" else click.echo(readable(describe(warning)), err=True)

    def _count(self, event: Event) -> None:
        counts = self._counts
        match event:
            case PassStarted(samples=samples):
                counts["samples"] = max(counts["samples"], samples)
            case BlockDone(bytes=count):
                counts["read_bytes"] += count
                return
            case PassFinished():
                counts["passes"] += 1
            case Warned() | FileSkipped():
                counts["warnings"] += 1
        self._note_peak()

    def _note_peak(self) -> None:
        """Note the largest memory so far; every session resets the system's high-water mark."""
        from ..machine import peak_resident

        self._counts["peak_memory_bytes"] = max(self._counts["peak_memory_bytes"], peak_resident())

    def _text(self, path: str, code: int) -> str:
        """Return the content of the file of metrics, in the format that its suffix names."""
        self._note_peak()
        values: dict[str, float] = {
            "exit_status": code,
            "start_time_seconds": self._started,
            "end_time_seconds": time.time(),
            "duration_seconds": time.perf_counter() - self._began,
            "cpu_seconds": _processor_seconds() - self._processor,
            **self._counts,
            **self._of_model,
        }
        values = {name: value for name, value in values.items() if not math.isnan(value)}
        labels = {"command": self._command, "run": Path(path).stem}
        if path.endswith(".json"):
            return json.dumps({"streampca": __version__, **labels, **_plain(values)}, indent=1) + "\n"
        return "".join(_exposed(name, labels, value) for name, value in values.items())


def log(event: Event) -> None:
    """Write an event to standard error as one line of JSON."""
    levels = {Warned: "warning", FileSkipped: "warning", BlockDone: "debug"}
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    if isinstance(event, Planned):
        values["plan"] = event.plan.to_json()
    name = _BORDER.sub("_", type(event).__name__).lower()
    _write_line(levels.get(type(event), "info"), name, values, values.pop("message", "") or describe(event))


def _quiet_log(event: Event) -> None:
    """Write warnings, and ignore every other event."""
    if isinstance(event, Warned | FileSkipped):
        log(event)


def _write_line(level: str, event: str, values: Mapping[str, Any], message: str) -> None:
    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    line = {"time": now, "level": level, "event": event, **_plain(values), "message": message}
    click.echo(json.dumps(line, allow_nan=False, default=str), err=True)


def _plain(value: Any) -> Any:
    """Return a value without infinities and NaN, which JSON has not: they are null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _exposed(name: str, labels: Mapping[str, str], value: float) -> str:
    """Return the lines of a metric in Prometheus's text format."""
    escaped = {key: re.sub(r'([\\"])', r"\\\1", text).replace("\n", r"\n") for key, text in labels.items()}
    listed = ",".join(f'{key}="{text}"' for key, text in escaped.items())
    number = "+Inf" if math.isinf(value) else repr(value)
    name, meaning = f"streampca_{name}", METRICS[name]
    return f"# HELP {name} {meaning}\n# TYPE {name} gauge\n{name}{{{listed}}} {number}\n"


def _check_metrics(path: str) -> None:
    """Refuse a file of metrics that cannot be written, or would replace another file.

    Raises
    ------
    OutputError
        Before anything is computed.
    """
    from ..storage.disk import check_place, open_regular

    check_place(path)
    if not os.path.lexists(path):
        return
    # A file that cannot be read as text is another one, too.
    with suppress(OSError, ValueError), open_regular(path, "r", encoding="utf-8") as file:
        if file.read(len(_OURS[1])).startswith(_OURS):
            return
    raise OutputError(f"{path} exists and is no file of metrics that streampca wrote; give another path, or remove it.")


def _processor_seconds() -> float:
    """Return the processor time of this process, and of those it has waited for."""
    return sum(os.times()[:4])
