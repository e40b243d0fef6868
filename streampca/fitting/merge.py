"""`merge`: one model from the statistics that models of parts store, without reading a sample again.

The parts are those of one collection, fitted separately (``fit(..., part="3/16")``), or whole collections. Their
statistics are added in order, two in memory at a time, and solved with the options of the parts: scatter matrices give
the exact result, sketches of them a bound. With `approximate`, components replace the statistic of a model without one.
"""

from __future__ import annotations

import gc
import glob
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, Unpack

import numpy as np

from ..accumulators import FrequentDirections, Scatter
from ..arrays import Array
from ..errors import ModelError, OutputError, RequestError
from ..events import BlockDone, Listener, PassStarted, Planned, Warned, reported
from ..execution import LocalExecutor
from ..execution.checkpoint import StageCheckpoint
from ..execution.fold import one_span
from ..execution.session import run_session
from ..kinds.options import components
from ..kinds.run import Part, RunOptions
from ..machine import PeakMeter, hand_back
from ..models.load import load_model
from ..models.model import Model
from ..models.pca import PCAModel
from ..models.store import check_model_output, kind_of_statistic, read_statistic
from ..planning import Plan, merge_plan
from ..planning.blocks import Span, blocks_of
from ..planning.incremental import SKETCH, batch_plan, merged_sketch_candidates
from ..planning.request import RUN_FIELDS, STOPPING, Problem, Request
from ..preprocessing.run_options import DEVICE, OF_FITS, SHARING, run_and_opening
from ..preprocessing.sizes_for_planning import this_machine
from ..readers import check_apart, fitted_reading, shared_record
from ..readers.collection import digest
from ..readers.coordinates import CHECK, CommonGrid, Grid, is_checked
from ..signals import stopping_on_signals
from ..storage.coordinate import Coordinate
from ..storage.disk import expanded
from ..units import counted
from .build_model import numbers_of, provenance_of
from .identity import check_adds, decisive_fields, described
from .methods import Decomposition, check_variance, decompose, decompose_sketch, sketch_of_model
from .plan import warn_of_disk
from .seen import SEEN, seen_by

PathLike = str | os.PathLike[str]

COLLECTED_BYTES = 2**24  # from this size on an unused statistic is freed by `gc.collect`, which takes 0.1 to 0.3 s
COMPONENTS = "components"  # kind of statistic of a model whose components replace it


@stopping_on_signals()
def merge(
    parts: PathLike | Iterable[PathLike | Model],
    *,
    n_components: int | float | str | None = None,
    approximate: bool = False,
    coordinates: str = CHECK,
    **options: Unpack[RunOptions],
) -> PCAModel:
    """Make one model from models of the parts of a collection, or of several collections, as if fitted at once.

    Parameters
    ----------
    parts : path, glob or sequence of these and PCAModels
        All parts of a collection, each fitted with ``part=``; or models of whole collections with their statistic. In
        any order.
    n_components : int, float or str, optional
        As for `fit`, "all" for all; by default that of the models, which must be the same for all.
    approximate : bool, default=False
        Use the components of a model without a statistic, as of method "dual" or "randomized", in its place; the error
        bounds, and a warning, include what they leave out.
    coordinates : {"check", "ignore"}
        "check" requires models with the same coordinates in the same order; "ignore" matches pixels by position, as for
        models without coordinates. See `open_collection`.
    **options
        ``memory``, ``output``, ``overwrite``, ``checkpoint`` and ``listener``: see `streampca.Run`.

    Returns
    -------
    PCAModel
        Model with its statistic, so that it can be merged again. Scatter matrices of whole numbers with exact products
        give the bits of a fit of all samples; others agree to rounding, sketches within `error_bound`.

    Raises
    ------
    ModelError
        If a part is missing, listed twice, damaged or without a statistic, or if it was fitted with other options or
        coordinates than the others; or if a model of a whole collection has a `half_life`.
    BudgetError
        If two statistics, or one and the solver, do not fit the budget.
    OutputError
        If `output` exists (and `overwrite` is false) or cannot be written.

    Notes
    -----
    Reads 4 to 8 p^2 bytes a part. Memory: 16 p^2 bytes, and what the solver takes; 32 l p for sketches of l rows, which
    hold all components of the parts where these fit.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> parts = [streampca.fit(digits, n_components=10, part=f"{i}/2", output=f"part{i}.zarr") for i in (1, 2)]
    >>> streampca.merge(["part1.zarr", "part2.zarr"])
    PCAModel(10 components of 8 x 8 samples, 73.8% of the variance of 1797 samples)
    """
    run, _ = run_and_opening(merge, options, unused=(*SHARING, *OF_FITS, *DEVICE))
    checked, count = is_checked(coordinates), None if n_components == "all" else components(n_components)
    path, models = None if run.output is None else expanded(run.output), _models_of(parts)
    with run_session("merge", run, path) as current:
        if path is not None:
            paths = [os.path.realpath(model) for model in models if isinstance(model, str)]
            if os.path.realpath(path) in paths:
                raise OutputError(f"{path} is one of the models to merge; choose another output.")
            check_model_output(path, overwrite=run.overwrite)
            check_apart([path], [model if isinstance(model, str) else model.name for model in models])
        pieces = [
            _Piece.of(item, number, approximate=approximate, memory=run.budget) for number, item in enumerate(models, 1)
        ]
        has_sketch = any(piece.kind != Scatter.kind for piece in pieces)
        # Options in which the models may differ: a requested number replaces theirs, and sketches use no probes.
        free = [*(["n_components"] if n_components is not None else []), *(["random_state"] if has_sketch else [])]
        pieces = _ordered(pieces, free)
        if not approximate:
            _check_kinds(pieces)
        common = _common_coordinates(pieces, checked=checked)
        _check_no_sample_twice(pieces, current.listener)
        data, problem, request = _merged_data(pieces)
        request = request.asking(n_components=request.n_components if n_components is None else count, method="auto")
        request = replace(request, memory=run.budget, output=path is not None, scratch=None)
        plan = _plan(pieces, problem, request)
        current.listener(Planned(plan))
        warn_of_disk(plan, path, current.checkpoint_disk, current.listener)
        meter, identity = PeakMeter(), partial(_identity_of, pieces, plan.request, path)
        with current.resumable(identity, decisive_fields(plan)) as saved:
            checkpoint = None if saved is None else saved.stage("parts")
            decomposition = _solve(pieces, data["source"], plan, checkpoint, current.listener)
            first = pieces[0].load()
            provenance = provenance_of(data, plan, decomposition, seconds=current.seconds, peak=meter.peak())
            numbers = numbers_of(decomposition, first.sample_shape, first.mask, decomposition.components)
            model = replace(first, **numbers, coordinates=common, provenance=provenance, name="the model")
            if path is not None:
                model.save(path, overwrite=run.overwrite)
    return model


def _identity_of(pieces: Sequence[_Piece], request: Request, path: str | None) -> dict[str, Any]:
    """Return the facts that must be unchanged for an unfinished merge to be resumed."""
    options = {name: value for name, value in request.given.items() if name not in RUN_FIELDS or name == "memory"}
    return {
        "work": "merge",
        "output": None if path is None else os.path.abspath(path),
        **options,
        "models": [piece.name for piece in pieces],
        **{f"state of {piece.name}": digest(piece.provenance) for piece in pieces},
    }


def _models_of(parts: PathLike | Iterable[PathLike | Model]) -> list[str | Model]:
    """Return models and paths one by one, with globs expanded."""
    models: list[str | Model] = []
    for part in [parts] if isinstance(parts, (str, os.PathLike)) or not isinstance(parts, Iterable) else parts:
        if not isinstance(part, (str, os.PathLike, Model)):
            raise RequestError(
                f"a {type(part).__name__} is not a model; merge takes models and the folders they were saved to. "
                "Fit each collection with method='covariance' first."
            )
        path = part if isinstance(part, Model) else expanded(part)
        if isinstance(path, Model) or os.path.lexists(path) or not glob.has_magic(path):
            models.append(path)
            continue
        matches = sorted(glob.glob(path))
        if not matches:
            raise ModelError(f"{path} matches no model; give the folders of models fitted with --part (part).")
        models += matches
    return models


@dataclass(frozen=True)
class _Piece:
    """A model to merge, without its arrays, which are loaded when they are added.

    Attributes
    ----------
    name : str
        Name for messages.
    source : str or PCAModel
        Folder of the model, or the model itself.
    part : Part or None
        Part of a collection; None for a whole one.
    kind : str
        Kind of its statistic, or ``"components"`` if these replace it.
    provenance : mapping
        Provenance of the model.
    required : mapping
        Values that must equal those of the other models, by name.
    data : mapping
        Values that distinguish its data from those of the other models.
    grid : Grid
        Grid of its prepared samples.
    memory : int or None
        Most bytes to read of it at once; half of what the machine allows by default.
    n_directions : int
        Number of components.
    """

    name: str
    source: str | PCAModel
    part: Part | None
    kind: str
    provenance: Mapping[str, Any]
    required: Mapping[str, Any]
    data: Mapping[str, Any]
    grid: Grid
    memory: int | None
    n_directions: int

    @classmethod
    def of(cls, item: str | Model, number: int, *, approximate: bool, memory: int | None) -> _Piece:
        name = expanded(item) if isinstance(item, str) else f"model {number}"
        model = _load(item, name, memory)
        source = item if isinstance(item, str) else model
        if model.statistic is None and os.path.isdir(model.name) and kind_of_statistic(model.name) is not None:
            source = model.name  # a model that was loaded without the statistic that its folder has
        provenance = model.provenance
        kind = kind_of_statistic(source)
        if kind is None and not approximate:
            raise ModelError(
                f"{name} keeps no statistic that could be merged; fit it again with --method covariance "
                "(method='covariance'), or merge its components alone with --approximate (approximate=True), which "
                "costs accuracy that the error bounds state."
            )
        part = Part(*provenance["part"]) if "part" in provenance else None
        half_life = provenance["plan"]["request"].get("half_life")
        if part is None and half_life is not None:
            raise ModelError(
                f"{name} was fitted with half_life={half_life:g}, and what its samples count depends on how many come "
                "after them; add those by --update (streampca.update), or fit parts of one collection "
                "(--part, part=)."
            )
        data = {key: provenance.get(key) for key in ("source", "fingerprint", "sample_weight")}
        required = _required_values(model)
        if part is not None:
            required |= {"parts": part.of, "n_samples": provenance["n_samples"], **data}
            required |= {"precision": provenance["plan"]["precision"]}
        data |= {"n_samples": model.n_samples, "mean": digest(model.mean.tobytes())}
        grid = Grid(model.sample_dims, model.coordinates)
        count = len(model.explained_variance)
        return cls(name, source, part, kind or COMPONENTS, provenance, required, data, grid, memory, count)

    def load(self) -> PCAModel:
        """Return the model, its components on disk."""
        return _load(self.source, self.name, self.memory)

    def statistic(self) -> Scatter | FrequentDirections:
        """Return the statistic stored with the model, checked against it.

        Raises
        ------
        ModelError
            If it is damaged.
        """
        model = self.load()
        source = self.source
        statistic = read_statistic(source, memory=self.memory) if isinstance(source, str) else model.statistic
        assert isinstance(statistic, Scatter | FrequentDirections)  # noqa: S101 - by `kind`
        weight = model.n_samples if model.total_weight is None else model.total_weight
        expected = model.n_features, model.n_samples, weight
        counts = statistic.n_features, statistic.n_samples, statistic.weight
        sums: list[Any]
        if isinstance(statistic, FrequentDirections):
            sums, has_seed = [statistic.sketch], True
        else:
            sums, has_seed = (
                [statistic.upper, statistic.probe_products],
                statistic.seed == self.required["random_state"],
            )
        is_finite = all(np.isfinite(np.sum(values)) for values in (*sums, statistic.mean, statistic.trace))
        if counts != expected or not has_seed or not is_finite:
            raise ModelError(f"{self.name} is damaged: the statistic it keeps is not of its samples. Fit it again.")
        return statistic

    def sketch(self, rows: int) -> FrequentDirections:
        """Return the sketch stored with the model, or one made from its components."""
        if self.kind != FrequentDirections.kind:
            return sketch_of_model(self.load(), rows)
        sketch = self.statistic()
        assert isinstance(sketch, FrequentDirections)  # noqa: S101 - by `kind`
        return sketch


def _load(source: str | Model, name: str, memory: int | None) -> PCAModel:
    model = load_model(source, memory=memory, components=False) if isinstance(source, str) else source
    return check_adds(model, name)


def _required_values(model: PCAModel) -> dict[str, Any]:
    """Return, by name, the values that models must share to be merged: options, preparation, kind of samples."""
    plan = model.provenance["plan"]
    options = {key: value for key, value in plan["request"].items() if key not in RUN_FIELDS | STOPPING | {"method"}}
    return {
        "sample shape": model.raw_shape,
        "values of kind": model.raw_kind,
        **described(None, options, model.preparation, model.mask, None, None),
    }


def _ordered(pieces: list[_Piece], free: Collection[str]) -> list[_Piece]:
    """Return the pieces in the order of addition; refuse pieces that cannot be merged.

    Raises
    ------
    ModelError
        If required values differ, except those that are `free`, or parts are missing.
    """
    if not pieces:
        raise RequestError("there is nothing to merge; give the models of all parts of a collection.")
    first = pieces[0]
    for piece in pieces[1:]:
        if (piece.part is None) != (first.part is None):
            part, whole = (first, piece) if piece.part is None else (piece, first)
            raise ModelError(
                f"{whole.name} is of a whole collection, and {part.name} is part {part.part}; leave one of them out."
            )
        reading, expected = fitted_reading(piece.provenance), fitted_reading(first.provenance)
        if reading is not None and expected is not None and reading != expected:
            raise ModelError(
                f"images that {piece.name} was fitted on were {reading}, and those of {first.name} {expected}; fit one "
                "of them again."
            )
        for key, value in piece.required.items():
            if first.required.get(key) != value and key not in free:
                remedy = ", or give -k (n_components) for all" if key == "n_components" else ""
                raise ModelError(
                    f"{piece.name} was fitted with {key} {value!r}, and {first.name} with {first.required.get(key)!r}; "
                    f"leave one of them out, or fit it again as the other{remedy}."
                )
    return pieces if first.part is None else _all_parts(pieces, first.part.of)


def _check_kinds(pieces: list[_Piece]) -> None:
    """Refuse to add scatter matrices and sketches, whose sum would be a sketch."""
    first = pieces[0]
    other = next((piece for piece in pieces if piece.kind != first.kind), None)
    if other is not None:
        exact, sketched = (first, other) if first.kind == Scatter.kind else (other, first)
        raise ModelError(
            f"{exact.name} keeps its scatter matrix, and {sketched.name} a sketch: their sum is a sketch, too. Merge "
            "them with --approximate (approximate=True), or fit the latter again with "
            "--method covariance (method='covariance')."
        )


def _common_coordinates(pieces: list[_Piece], *, checked: bool) -> dict[str, Coordinate]:
    """Return the coordinates of the pieces.

    Raises
    ------
    ModelError
        If they differ, even in their order, and are checked. The probes of a statistic fix the order of features.
    """
    common = CommonGrid(ModelError, checked=checked, fixed=range(len(pieces[0].grid.dims)))
    for piece in pieces:
        common.add(piece.grid, piece.name)
    return common.coordinates


def _all_parts(pieces: list[_Piece], of: int) -> list[_Piece]:
    """Return the parts of a collection in order; refuse missing and repeated ones."""
    parts: dict[int, _Piece] = {}
    for piece in pieces:
        number = piece.part.number if piece.part else 0
        if number in parts:
            raise ModelError(
                f"part {number}/{of} is given twice, by {parts[number].name} and {piece.name}; leave one out."
            )
        parts[number] = piece
    missing = [f"{number}/{of}" for number in range(1, of + 1) if number not in parts]
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(
            f"part {missing[0]} is missing{more}; fit what is missing (--part {missing[0]}, part={missing[0]!r}) and "
            "give it too."
        )
    return [parts[number] for number in sorted(parts)]


def _merged_data(pieces: list[_Piece]) -> tuple[dict[str, Any], Problem, Request]:
    """Return the provenance of the merged data, the problem, and the request."""
    first = pieces[0]
    plan = first.provenance["plan"]
    problem, request = Problem.from_json(plan["problem"], this_machine()), Request.from_given(plan["request"])
    skipped = first.provenance.get("skipped") or []
    axes = {name: first.provenance[name] for name in ("axes",) if name in first.provenance}
    records = [reading.record() for piece in pieces if (reading := fitted_reading(piece.provenance))]
    record = records[0] if records else None
    if first.part is not None:
        data = {name: first.data[name] for name in ("source", "fingerprint", "sample_weight")}
        shared = ("states", "dtype", "nbytes", "units", "opened", "place", "files", "dates")
        data |= {name: first.provenance.get(name) for name in shared}
        data |= {"reading": record, "skipped": skipped, "parts": first.part.of, **axes}
        return data, replace(problem, n_samples=first.provenance["n_samples"]), request
    merged = [entry for piece in pieces for entry in _entries(piece)]
    weights = [entry["sample_weight"] for entry in merged]
    dtypes, sizes = (
        {piece.provenance.get("dtype") for piece in pieces},
        [piece.provenance.get("nbytes") for piece in pieces],
    )
    data = {
        "source": ", ".join(entry["source"] for entry in merged),
        "fingerprint": digest(*(entry["fingerprint"] for entry in merged)),
        "sample_weight": digest(*weights) if any(weights) else None,
        "dtype": dtypes.pop() if len(dtypes) == 1 else None,
        "nbytes": None if None in sizes else sum(sizes),
        "units": first.provenance.get("units"),
        "opened": shared_record([piece.provenance.get("opened") for piece in pieces]),
        "reading": record,
        "skipped": [item for piece in pieces for item in piece.provenance.get("skipped") or []],
        "merged": merged,
        SEEN: [vars(source) for piece in pieces for source in seen_by(piece.provenance, piece.name)],
        **axes,
    }
    n_samples = sum(piece.provenance["plan"]["problem"]["n_samples"] for piece in pieces)
    return data, replace(problem, n_samples=n_samples), request


def _entries(piece: _Piece) -> list[Mapping[str, Any]]:
    """Return a record of each collection that a model was fitted on; several if it was merged."""
    entries: list[Mapping[str, Any]] = piece.provenance.get("merged", [piece.data])
    return entries


def _check_no_sample_twice(pieces: list[_Piece], listener: Listener) -> None:
    """Refuse models that share a collection or a file; warn of models that share dates."""
    if pieces[0].part is not None:
        return
    seen: set[tuple[Any, ...]] = set()
    for entry in (entry for piece in pieces for entry in _entries(piece)):
        identity = entry["fingerprint"], entry["mean"]
        if identity in seen:
            raise ModelError(f"{entry['source']} is in two of the models to merge; leave one of them out.")
        seen.add(identity)
    sources = [(piece.name, seen_by(piece.provenance, piece.name)) for piece in pieces]
    for (name, files), (other_name, other_files) in combinations(sources, 2):
        if any(seen_files.shares_samples(other) for seen_files in files for other in other_files):
            raise ModelError(
                f"{name} and {other_name} were fitted to samples of the same files; leave one of them out."
            )
    dates = [np.unique(np.concatenate([source.keys for source in files])) for _, files in sources if files]
    common = int(np.count_nonzero(np.unique(np.concatenate(dates), return_counts=True)[1] > 1)) if dates else 0
    if common:
        listener(
            Warned(
                f"the models to merge share {counted(common, 'date')}; where their samples of one date are the same, "
                "these count twice."
            )
        )


def _plan(pieces: list[_Piece], problem: Problem, request: Request) -> Plan:
    """Plan to add scatter matrices, in the lowest of their precisions, if all models have one; else sketches.

    Raises
    ------
    BudgetError
        If it does not fit the budget.
    """
    if all(piece.kind == Scatter.kind for piece in pieces):
        double = all(piece.provenance["plan"]["precision"] == "double" for piece in pieces)
        return replace(merge_plan(problem, request), precision="double" if double else "single")
    rows = sum(piece.n_directions + 1 for piece in pieces)
    return replace(batch_plan(merged_sketch_candidates(problem, request, rows), problem, request), threads=1, ahead=0)


@dataclass(frozen=True)
class _AddingParts:
    """Add the statistics of models from left to right; see `streampca.execution.Task`. Spans count models."""

    pieces: Sequence[_Piece]
    plan: Plan

    def start(self) -> Scatter | FrequentDirections:
        plan, p = self.plan, self.plan.problem.n_features
        if plan.method == SKETCH:
            return FrequentDirections(p, rows=plan.product_rows)
        return Scatter(p, precision=plan.precision, product_rows=plan.product_rows, seed=plan.request.seed)

    def restore(self, state: dict[str, Array]) -> Scatter | FrequentDirections:
        kind: Any = FrequentDirections if self.plan.method == SKETCH else Scatter
        statistic: Scatter | FrequentDirections = kind.from_state(state, copy=False)
        return statistic

    def blocks(self, span: Span) -> Iterable[Span]:
        return blocks_of(span, 1)

    def counts(self, block: Span) -> BlockDone:
        p, pieces = self.plan.problem.n_features, self.pieces[slice(*block)]
        rows = self.plan.product_rows if self.plan.method == SKETCH else p
        return BlockDone(sum(piece.data["n_samples"] for piece in pieces), 8 * p * rows * len(pieces))

    def fetch(self, block: Span) -> Scatter | FrequentDirections:
        if self.counts(block).bytes >= COLLECTED_BYTES:
            # Errors that Zarr caught are left in reference cycles, whose frames hold the previous statistic.
            gc.collect()
        hand_back()
        piece = self.pieces[block.start]
        return piece.sketch(self.plan.product_rows) if self.plan.method == SKETCH else piece.statistic()

    def feed(self, accumulator: Any, block: Span, fetched: Any) -> None:
        accumulator.absorb(fetched)


def _solve(
    pieces: list[_Piece], source: str, plan: Plan, checkpoint: StageCheckpoint | None, listener: Listener
) -> Decomposition:
    """Add the pieces' statistics, one in memory beside the sum, and solve the eigenproblem."""
    task, span = _AddingParts(pieces, plan), Span(0, len(pieces))
    with reported(listener, PassStarted("parts", 1, 1, plan.problem.n_samples, task.counts(span).bytes)):
        total: Any = LocalExecutor().fold(task, [span], one_span, listener=listener, checkpoint=checkpoint)
    if 8 * plan.problem.n_features**2 >= COLLECTED_BYTES:
        gc.collect()
    hand_back()
    if plan.method == SKETCH:
        check_variance(total.trace, source, plan)
        decomposition = decompose_sketch(total, plan, listener)
        bounds = 100 * np.asarray(decomposition.error_bound)
        listener(
            Warned(
                f"models without their scatter matrix were merged by {total.rows} directions: variances are right to "
                f"{bounds[0]:.2g} % of the first and {bounds[-1]:.2g} % of the last (error_bound); merge models of "
                "method 'covariance', or with more components, for less."
            )
        )
        return decomposition
    total.settle()
    check_variance(total.trace, source, plan)
    return decompose(total, plan, listener)
