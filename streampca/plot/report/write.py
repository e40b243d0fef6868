"""`write_report`: write a page and files of pictures on a model and its collection, or another one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np

from ...errors import OutputError, SourceError, StreampcaError, first_line
from ...events import Listener, or_logged
from ...execution.session import run_session
from ...kinds.opening import Opening, OpeningOptions
from ...models.classical_mds import PairsModel
from ...models.embedding import EmbeddingModel
from ...models.load import load_model
from ...models.model import Model
from ...models.transform.resume import digest_of
from ...planning.blocks import block_limit
from ...planning.registry import OF_KERNEL
from ...preprocessing import complete_samples
from ...preprocessing.run_options import DEVICE, OF_FITS, FitOptions, run_and_opening
from ...preprocessing.sizes_for_planning import this_machine
from ...readers import (
    OpeningRecord,
    check_apart,
    check_not_remote,
    column_paths,
    given_of,
    open_collection,
    paths_of,
)
from ...readers.collection import Collection, data_difference, digest, file_and_key, states_by_name
from ...storage.disk import expanded, open_regular
from ...storage.locks import output_lock
from ...storage.outputs import check_ending, check_file, staged
from ...units import whole_number
from .figures import FigureForm, figure_files
from .page import WRITER, Page, page_of, write_page
from .survey import survey

EXAMINED = 200_000  # default number of examined samples
ENDINGS = (".html", ".htm")
TABLE = "csv"  # format of the numbers behind figures
MOST_BEFORE_WRITER = 4096  # bytes at the beginning of a report that name what wrote it


class ReportOptions(FitOptions, total=False):
    """Options of a run and of opening, and the form of the files of figures."""

    figure_format: str
    figure_width: float | None


FIGURE_OPTIONS = ("figure_format", "figure_width")


def write_report(
    model: Model | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    collection: Any = None,
    examine: int | None = EXAMINED,
    figures: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    **options: Unpack[ReportOptions],
) -> list[str]:
    """Write a report of a model and a collection: one self-contained HTML file.

    Parameters
    ----------
    model : Model or path
        The model.
    path : path
        File to write, ``.html``.
    collection : path, glob, list of paths, array or Collection, optional
        Raw samples of the model's kind, see `open_collection`; by default those the model was fitted on, opened as
        they were then, if that is still possible and they have not changed; those behind a URL only with
        ``allow_remote=True``. Otherwise a warning and the report say so, and the report has what needs no samples.
    examine : int or None, default=200000
        Largest number of samples to examine, in runs of whole storage chunks spread over the collection; None for all.
    figures : path, optional
        Folder to which the figures are written as well, one file each, with texts of 6 or 7 points.
    data : path, optional
        Folder to which the numbers behind each figure are written, as CSV.
    **options
        ``figure_format``: of the files of figures, "pdf" (the default), "svg" or "png". ``figure_width``: their width
        in mm, from 60 to 400; by default 90 for charts, the width of a column, and 180 for others. Unusual samples have
        at least 120.
        ``memory``, ``overwrite``, ``checkpoint``, ``workers``, ``cluster`` and ``listener``: see `streampca.Run`.
        Workers share the pass over the samples. Of components that do not fit
        the leading ones are drawn, and the report says which. ``labels``, ``key``, ``select`` ...: see
        `open_collection`. Labels colour the samples.

    Returns
    -------
    list of str
        Written files: the report, then figures, then tables.

    Raises
    ------
    SourceError, RequestError
        If a given collection cannot be read, or an option is wrong.
    ModelError
        If the collection is not of the shape and kind the model was fitted on.
    BudgetError
        If a single component and sample do not fit in memory.
    OutputError
        If a file exists (and `overwrite` is false) or cannot be written.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=3)
    >>> streampca.write_report(model, "report.html", collection=digits[:50])
    ['report.html']
    """
    unused = (*OF_FITS, *DEVICE, "output")
    run, opening = run_and_opening(write_report, options, unused=unused, own=FIGURE_OPTIONS)
    listener = or_logged(run.listener)
    form = FigureForm(options.get("figure_format", "pdf"), options.get("figure_width"), data is not None)
    if examine is not None:
        whole_number(examine, "examine", least=1, example="20000, or --examine all (examine=None)")
    folders = [None if folder is None else expanded(folder) for folder in (figures, data)]
    places = ReportFiles(expanded(path), folders[0], form.kind, folders[1], run.overwrite)
    with run_session("report", run, places.path) as current, output_lock(places.figures), output_lock(places.data):
        listener, memory = current.listener, run.budget or current.executor.memory
        places.check()
        fitted = model if isinstance(model, Model) else load_model(model, memory=memory)
        # A report must not overwrite its own sources.
        check_apart(places.files, [*_read_from(fitted, collection), fitted.name, *column_paths(opening.get("labels"))])
        check_ending(places.path, ENDINGS)
        embeds = isinstance(fitted, EmbeddingModel)
        complete = partial(_complete, fitted, memory=run.budget, listener=listener)
        raw, missing = _raw(fitted, collection, opening, complete) if not isinstance(fitted, PairsModel) else (None, "")
        identity = partial(
            _identity_of,
            fitted,
            raw,
            places,
            {"examine": examine, "figure_width": form.width, "memory": this_machine().budget(memory)[0]},
        )
        with current.resumable(identity, {}, workers=current.executor.workers) as saved:
            survey_stage, drawing = (None if saved is None else saved.stage(name) for name in ("survey", "figures"))
            # Samples of an embedding need no survey: the model knows their positions.
            surveyed = None
            if raw is not None and not embeds:
                how: dict[str, Any] = {"memory": memory, "examine": examine, "checkpoint": survey_stage}
                how |= {"executor": current.executor, "workers": None if saved is None else saved.record["workers"]}
                surveyed = survey(fitted.shown, raw, **how, listener=listener)
            form = form if places.figures is not None else replace(form, kind="")
            how = {"missing": missing, "form": form, "checkpoint": drawing}
            return places.write(page_of(fitted, surveyed, raw, **how, listener=listener))


def _identity_of(
    model: Model, raw: Collection | None, places: ReportFiles, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what must be the same for an unfinished report to be resumed."""
    about = {
        "work": "report",
        "output": os.path.abspath(places.path),
        "figure_format": None if places.figures is None else places.kind,
        "data": places.data is not None,
        "model": model.name,
        "digest of the model": digest(digest_of(model.subspace, model.frame), model.provenance),
        **options,
    }
    if raw is None:
        return about
    labels = None if raw.labels is None else digest(np.asarray(raw.labels).tolist())
    return {**about, "source": raw.source, "samples": raw.n_samples, "labels": labels, **states_by_name(raw.states())}


def _raw(
    model: Model, collection: Any, opening: OpeningOptions, complete: Callable[[Collection], Collection]
) -> tuple[Collection | None, str]:
    """Return the given collection, otherwise the fitted one, or None and the reason."""
    if collection is None:
        return _fitted(model, opening, complete)
    return complete(open_collection(collection, like=model, **opening)), ""


def _complete(model: Model, raw: Collection, *, memory: int | None, listener: Listener) -> Collection:
    """Leave out samples with missing values where the fit did: they have no scores, and cannot be drawn."""
    if model.rule_for(None) != "drop-samples":
        return raw
    limit = block_limit(this_machine(raw.storage.converted_bytes), memory)
    return complete_samples(model.prepared(raw), listener, block_bytes=limit).raw


def _fitted(
    model: Model, opening: OpeningOptions, complete: Callable[[Collection], Collection]
) -> tuple[Collection | None, str]:
    """Open the fitted collection as for the fit, except for given options; None and the reason if it changed."""
    before = opened_for(model)
    if before is None:
        what = model.provenance.get("source") or "samples that it does not name"
        return None, f"the model was fitted on {what}, which cannot be opened again by itself"
    named = given_of(Opening(**cast("dict[str, Any]", opening)))
    # Options that a model cannot store must be given again; labels alone can be missed.
    lost = [name for name in before.not_kept if name not in named]
    if lost and not (lost == ["labels"] and "where" not in before.options):
        return None, f"it was opened with {lost[0]} that a model does not keep, an array or a long list"
    options: Any = {**before.options, **named, "allow_remote": opening.get("allow_remote", False)}
    try:
        if not options["allow_remote"]:
            for named_by_model in (before.source, before.options.get("labels")):
                check_not_remote(named_by_model, f"the model {model.name}")
        raw = complete(open_collection(before.source, like=model, **options))
        prepared, plan = model.prepared(raw), model.provenance.get("plan") or {}
        # Method "kernel-matrix" makes the map itself, of data that are recorded as they are before it.
        before_map = prepared.unmapped if plan.get("method") == OF_KERNEL else None
        difference = data_difference(model.provenance, before_map or prepared)
    except (StreampcaError, OSError) as error:
        if named and (not isinstance(error, SourceError) or _opens(before.source, model, options)):
            raise
        return None, f"the collection the model was fitted on cannot be used ({first_line(error)})"
    return (raw, "") if difference is None else (None, difference)


def _opens(source: Any, model: Model, opening: Mapping[str, Any]) -> bool:
    """Return whether the collection opens without labels, which are then the cause of an error."""
    try:
        open_collection(source, like=model, **{**opening, "labels": None, "where": None})
    except (StreampcaError, OSError):
        return False
    return True


def opened_for(model: Model) -> OpeningRecord | None:
    """Return the record of opening the fitted collection, with its source alone if nothing else was stored."""
    data, source = model.provenance.get("opened"), model.provenance.get("source")
    before = OpeningRecord(None, {}) if data is None else OpeningRecord.from_json(data, model.name)
    if before.source is not None or not isinstance(source, str):
        return before if before.source is not None else None
    # The source of a file can name an array inside it.
    path, key = file_and_key(source)
    if data is not None and not os.path.exists(path):
        return None  # an array in memory, or a list too long to keep
    return replace(before, source=path, options={**({"key": key} if key else {}), **before.options})


def _read_from(model: Model, collection: Any) -> list[str]:
    """Return the paths from which samples are read: of the given collection, otherwise of the fitted one."""
    if collection is not None:
        return paths_of(collection)
    before = opened_for(model)
    return [] if before is None else paths_of(before.source)


@dataclass(frozen=True)
class ReportFiles:
    """Files of a report.

    Attributes
    ----------
    path : str
        Path of the page.
    figures : str or None
        Folder of its figures.
    kind : str
        Format of the figures.
    data : str or None
        Folder of the numbers behind them.
    overwrite : bool
        Whether existing files are replaced.
    """

    path: str
    figures: str | None
    kind: str
    data: str | None
    overwrite: bool

    @property
    def files(self) -> list[str]:
        """Paths of the page, and of every figure and table it can have."""
        folders = ((self.figures, self.kind), (self.data, TABLE))
        return [
            self.path,
            *(path for folder, kind in folders if folder is not None for path in figure_files(folder, kind)),
        ]

    def check(self) -> None:
        """Refuse files that cannot be written, before anything is computed.

        Raises
        ------
        OutputError
            If a file exists and must not be replaced, or a path is of the wrong kind or not writable.
        """
        for folder, what in ((self.figures, "figures"), (self.data, "tables")):
            if folder is not None and os.path.lexists(folder) and not os.path.isdir(folder):
                raise OutputError(f"{folder} is not a folder; choose another for the {what}.")
        check_file(self.path, overwrite=self.overwrite, what="a report", is_another=_is_another_page)
        for path in self.files[1:]:
            check_file(path, overwrite=self.overwrite)

    def write(self, page: Page) -> list[str]:
        """Write the page, its figures and their numbers, each complete or not at all; return their paths."""
        files: dict[str, bytes] = {}
        for folder, kind in ((self.figures, self.kind), (self.data, TABLE)):
            if folder is not None:
                contents = ((figure.name, figure.numbers if kind == TABLE else figure.data) for figure in page.pictures)
                files |= {os.path.join(folder, f"{name}.{kind}"): content for name, content in contents}
        with ExitStack() as stack:  # all files are complete before the first gets its name
            with open(stack.enter_context(staged(self.path)), "wb") as file:
                write_page(page, file)
            for path, content in files.items():
                Path(stack.enter_context(staged(path))).write_bytes(content)
        return [self.path, *files]


def _is_another_page(path: str) -> bool:
    """Return whether a file is HTML but not a report."""
    with open_regular(path) as file:
        start = file.read(MOST_BEFORE_WRITER)
    return start.lstrip()[:1] == b"<" and WRITER.encode() not in start
