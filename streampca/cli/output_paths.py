"""Paths of a run's outputs, which are checked before anything is computed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import RequestError, without_secrets
from ..readers import check_apart, column_paths, paths_of
from ..storage import remote
from ..storage.disk import expanded
from ..storage.outputs import check_output
from ..storage.remote import is_url
from .run_file import RunFile
from .run_record import FIGURE_DATA, FIGURES, LISTING, RECORDS, REPORT, SUMMARY, check_directory

if TYPE_CHECKING:
    from ..plot.report import ReportFiles


@dataclass(frozen=True)
class OutputPaths:
    """Paths of a run's outputs; None for outputs that it does not write."""

    directory: str | None
    model: str | None
    scores: str | None
    images: str | None
    report: str | None
    figures: str | None
    data: str | None
    collection: str | None
    graph: str | None
    figure_format: str

    @classmethod
    def of(cls, run: RunFile) -> OutputPaths:
        """Return the paths of a run's outputs; refuse a run without outputs, or one that would replace its input."""
        paths = _paths(run)
        if not paths.files and not paths.report:
            raise RequestError(
                "the run writes nothing; give output.directory, output.model, output.scores, output.images, "
                "output.graph or output.collection."
            )
        if paths.graph and (paths.need_model or run.apply) and not paths.scores:
            raise RequestError(
                "output.graph is made from the scores of a model; give output.scores (or output.transform) with it."
            )
        if (run.output.transform or run.output.report) and not paths.directory:
            raise RequestError(
                "output.transform and output.report need output.directory; add it, or give output.scores."
            )
        if run.run.part is not None and any((paths.scores, paths.images, paths.report)):
            raise RequestError(
                f"run.part {run.run.part} makes the model of a part only; leave out scores, images and report, and "
                "give them with the model that streampca merge makes."
            )
        paths._check_apart(run)
        paths._check_secrets()
        return paths

    @property
    def files(self) -> list[str]:
        """Outputs that are each written in one step, in the order of writing."""
        return [path for path in (self.model, self.collection, self.scores, self.images, self.graph) if path]

    def name_of(self, path: str) -> str:
        """Return the key of an output."""
        return next(name for name, value in vars(self).items() if value == path and name != "directory")

    @property
    def claimed(self) -> list[str]:
        """Outputs that are locked during the run; the record stands for the directory."""
        record = os.path.join(self.directory, SUMMARY) if self.directory else None
        return [*self.files, *filter(None, (self.report, self.figures, self.data, record))]

    @property
    def need_model(self) -> bool:
        """True if an output needs a model."""
        return self.model is not None or self.apply_model

    @property
    def apply_model(self) -> bool:
        """True if an output is made by applying a model."""
        return any((self.scores, self.images, self.report))

    def listing(self, run: RunFile) -> str | None:
        """Return the path of the table of a folder's files, which spares the next run their headers.

        It lies in the run directory. Without a directory it is written only if every file is decoded for it, beside the
        first output, unless that is at a URL; never inside the source itself.
        """
        source, skips = run.collection.source, run.collection.on_bad_file == "skip"
        path = os.path.join(self.directory, LISTING) if self.directory else f"{self.files[0]}.{LISTING}"
        if not isinstance(source, str) or not os.path.isdir(expanded(source)) or not (self.directory or skips):
            return None
        if is_url(path):
            return None
        inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(expanded(source)))
        return None if inside else path

    def check(self, may_replace: Callable[[str], bool], *, model: bool) -> None:
        """Refuse outputs that cannot be written, or exist and may not be replaced; the model's only if `model`."""
        for path in (*self.files, *filter(None, (self.report,))):
            if path != self.model or model:
                self.check_output(path, overwrite=may_replace(path))
        if self.directory:
            check_directory(self.directory)

    def check_output(self, path: str, *, overwrite: bool) -> None:
        """Refuse one output if it cannot be written, or exists and is not to be replaced."""
        if path in (self.scores, self.images):
            check_output(path, "scores" if path == self.scores else "images", overwrite=overwrite)
        elif path == self.collection:
            from ..preprocessing.copy import check_copy

            check_copy(path, overwrite=overwrite)
        elif path == self.graph:
            from ..manifold.stored_graph import check_graph_output

            check_graph_output(path, overwrite=overwrite)
        elif path == self.model:
            from ..models.store import check_model_output

            check_model_output(path, overwrite=overwrite)
        else:
            self.report_files(path, overwrite=overwrite).check()

    def report_files(self, path: str, *, overwrite: bool) -> ReportFiles:
        """Return the files of the report at a path."""
        from ..plot.report import ReportFiles

        return ReportFiles(path, self.figures, self.figure_format, self.data, overwrite)

    def _check_secrets(self) -> None:
        """Refuse secrets in URLs that the run file of a directory would hold."""
        for path in self.files if self.directory else ():
            if path != without_secrets(path):
                raise RequestError(
                    f"output {path} has a user, password or query, which the run file in {self.directory} would tell; "
                    "leave out output.directory, or give them by the store's own variables or files."
                )

    def _check_apart(self, run: RunFile) -> None:
        """Refuse outputs that contain or lie in the input or one another."""
        files = [*self.files, *filter(None, [self.report])]
        if self.report:
            files += self.report_files(self.report, overwrite=True).files[1:]
        records = [os.path.join(self.directory, name) for name in RECORDS] if self.directory else []
        prepare, collection = run.prepare, run.collection
        columns = column_paths(
            collection.labels, collection.sample_weight, collection.target, prepare.mask, prepare.scale
        )
        graph = getattr(run.model, "graph", None)
        stores = [expanded(path) for path in (run.apply, graph) if path]
        check_apart([*files, *records], [*paths_of(collection.source), *stores, *columns])
        places = [remote.place(path) if remote.is_url(path) else os.path.realpath(path) for path in files]
        for index, place in enumerate(places):
            for output, other in zip(files, places[:index], strict=False):
                if f"{place}/".startswith(f"{other}/") or other.startswith(f"{place}/"):
                    raise RequestError(
                        f"output {files[index]} and output {output} are the same, or one lies in the other; choose "
                        "others."
                    )


def _paths(run: RunFile) -> OutputPaths:
    """Return the paths of a run's outputs, given or in its directory."""
    output = run.output
    folder = expanded(output.directory) if output.directory else None

    def place(path: str | None, name: str = "", in_folder: bool = False) -> str | None:
        """Return a given path, or else that of a name in the run directory."""
        return expanded(path) if path else os.path.join(folder, name) if folder and in_folder else None

    return OutputPaths(
        directory=folder,
        model=None if run.apply else place(output.model, "model.zarr", in_folder=True),
        scores=place(output.scores, "scores.zarr", output.transform),
        images=place(output.images),
        report=place(None, REPORT, output.report),
        figures=place(None, FIGURES, output.report),
        data=place(None, FIGURE_DATA, output.report and output.figure_data),
        collection=place(output.collection),
        graph=place(output.graph),
        figure_format=output.figure_format,
    )
