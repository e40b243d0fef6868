"""`IncrementalFit`: the model of samples that come in batches, computed when it is needed.

Batches are added to a statistic: the scatter matrix, or a sketch of it (`streampca.planning.incremental` decides).
Small batches wait in a buffer until there are enough rows for an efficient product. Larger ones are read within the
budget as in any fit, into a statistic of their own, which is added when the reading is complete. So a batch that is
refused, or whose reading is interrupted, changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import numpy as np

from ..accumulators import FrequentDirections, RowBuffer, Scatter
from ..accumulators.finite import has_safe_squares
from ..arrays import Array, Float64
from ..errors import DataError, ModelError, RequestError
from ..events import Listener, Warned
from ..execution import Executor, LocalExecutor
from ..execution.checkpoint import StageCheckpoint
from ..execution.executor import planning_for
from ..execution.threads import one_blas_thread
from ..models.compression import original_bytes
from ..models.pca import PCAModel
from ..planning import Plan
from ..planning.covariance import THREAD_FEATURES
from ..planning.incremental import (
    SKETCH,
    WAITING_BYTES,
    batch_plan,
    incremental_plan,
    scatter_candidates,
    sketch_candidates,
    stream_precision,
    waiting_rows,
)
from ..planning.request import Problem, Request
from ..preprocessing import Preparation, Prepared
from ..preprocessing.sizes_for_planning import problem_of, this_machine
from ..readers import Collection, open_collection, shared_record
from ..readers.collection import digest
from ..readers.weights import faded, weights_digest, weights_of_batch
from ..signals import stopping_on_signals, stops_delayed
from .build_model import model_of, numbers_of, provenance_of
from .methods import Decomposition, Job, check_products, check_variance, decompose, decompose_sketch
from .methods.covariance import accumulate
from .methods.frequent_directions import sketch_samples
from .null_components import with_n_components
from .open_fit import prepare
from .preparation_rounding import measured_errors

Statistic = Scatter | FrequentDirections

SOURCES = 8  # sources that the provenance of a model names at most
REMEDY = (  # for a sample with missing values
    "Leave it out with --samples (samples=) or --where (where=), or fill it: what is missing in all samples shows only "
    "where they are fitted together (--missing, missing=)."
)
THREAD_ROWS = 1024  # buffered rows from which on threads save more time than starting them takes


@dataclass(frozen=True)
class BatchExecution:
    """Executor and checkpoint of the pass over a large batch.

    Attributes
    ----------
    executor : Executor
        Executor of the pass.
    stage : callable or None
        ``stage(name)`` opens the checkpoint of a pass; None without checkpoints.
    """

    executor: Executor = field(default_factory=LocalExecutor)
    stage: Callable[[str], StageCheckpoint] | None = None


class IncrementalFit:
    """A statistic of all samples so far, and the model of them.

    Parameters
    ----------
    template : PCAModel
        Model without components, whose raw samples later batches must resemble.
    problem : Problem
        Sizes of all samples so far.
    request : Request
        Request of the first batch, whose seed and precision hold for all.
    statistic : Scatter or FrequentDirections
        Statistic of all samples so far.

    Attributes
    ----------
    n_samples : int
        Samples so far, those of weight 0 included.
    """

    def __init__(self, template: PCAModel, problem: Problem, request: Request, statistic: Statistic) -> None:
        self.template, self.problem, self.request = template, problem, request
        self.n_samples, self.weight, self.weighted = 0, 0.0, request.half_life is not None
        self._statistic = statistic
        self._waiting = RowBuffer(problem.n_features, np.uint8, waiting_rows(problem, request))
        self._model: PCAModel | None = None
        self._completed: PCAModel | None = None  # the same with another number of components
        self._solved_request: Request | None = None  # that of `_model`
        self._shared = False  # a model holds the statistic, which must not change any more
        self._rounding = 0.0  # rounding error of the preparation, for a unit of weight ...
        self._measured = 0  # ... and the number of samples when it was measured
        self._changing = False  # stays True where a change of the statistic was interrupted
        self._warned = False
        self._sources: list[str] = []
        self._batches, self._nbytes, self._seconds = 0, 0, 0.0
        self._weights_digest: str | None = None
        self._about: dict[str, Any] = {}

    @classmethod
    def begin(cls, raw: Collection, preparation: Preparation | None, request: Request) -> Self:
        """Plan from the first batch's shape and dtype, without reading it.

        Raises
        ------
        RequestError, BudgetError
            See `incremental_plan`; or if the preparation needs a pass over all samples.
        """
        if request.missing != "error":
            raise RequestError(needs_all_samples(request.missing))
        if preparation is not None and preparation.reads_samples:
            subject, remedy = "anomaly, detrend and standardize are", "give the preparation of a model"
            if isinstance(preparation.mask, str):
                subject, remedy = "mask='valid' is", "give the mask as an array of True and False"
            elif not preparation.is_mapped:
                subject = "a feature map is"
            raise RequestError(
                f"{subject} learned from all samples before a fit, and batches never come together; {remedy}, or fit "
                "all samples at once."
            )
        collection = prepare(raw, None if preparation is None else preparation.in_precision(request.precision))
        problem = problem_of(collection)
        plan = incremental_plan(problem, request)
        statistic: Statistic
        if plan.method == SKETCH:
            statistic = FrequentDirections(problem.n_features, rows=plan.product_rows)
        else:
            options: dict[str, Any] = {"precision": stream_precision(problem, request), "seed": request.seed}
            statistic = Scatter(problem.n_features, product_rows=plan.product_rows, **options)
        return cls(_template(collection), _in_memory(problem), request, statistic)

    @classmethod
    def from_model(cls, model: PCAModel, request: Request) -> Self:
        """Return the fit of a model that has its statistic, for further batches.

        Raises
        ------
        ModelError
            If the model has no statistic, or belongs to a part of a collection.
        """
        statistic, about = model.statistic, model.provenance
        plan = about.get("plan") or {}
        if not isinstance(statistic, Statistic):
            raise ModelError(f"{model.name} {_no_statistic(plan.get('method'))}")
        if "part" in about:
            part = "{}/{}".format(*about["part"])
            raise ModelError(f"{model.name} is part {part} of a collection; merge the parts, and go on from the whole.")
        problem = Problem.from_json(plan["problem"], this_machine())
        # The random directions that check products were drawn with the seed of the first batch.
        seed = statistic.seed if isinstance(statistic, Scatter) else request.seed
        none, no_rows = np.empty(0), np.empty((0, *model.sample_shape))
        template = replace(
            model,
            components=no_rows,
            explained_variance=none,
            residual_bound=none,
            angle_bound=none,
            error_bound=none,
            statistic=None,
        )
        new = cls(template, _in_memory(problem), request.asking(random_state=seed), statistic)
        new.n_samples, new.weight = problem.n_samples, statistic.weight
        new.weighted = new.weighted or model.total_weight is not None
        new._sources, new._batches = [str(about.get("source"))], int(about.get("batches", 1))
        new._nbytes, new._weights_digest = about.get("nbytes") or 0, about.get("sample_weight")
        new._about = {name: about.get(name) for name in ("dtype", "units", "skipped")}
        new._model, new._shared = model, True
        k = request.n_components
        if plan["request"].get("n_components") == k and (k is None or model.n_components):
            new._solved_request = new._effective_request(request)
        return new

    # -- batches

    def add(
        self, raw: Collection, sample_weight: Any, listener: Listener, execution: BatchExecution | None = None
    ) -> None:
        """Add a batch: a collection of any size from 1 sample.

        Raises
        ------
        ModelError
            If the samples differ in shape, kind or grid from the earlier ones.
        DataError
            If a sample holds NaN or infinity, or squares of its values overflow.
        BudgetError
            If its blocks do not fit the budget.
        """
        with self._timed():
            collection = self.template.prepared(raw)
            weights = weights_of_batch(sample_weight, collection.raw)
            problem, n = problem_of(collection), collection.n_samples
            self._measure_rounding(collection, weights)
            is_small = n == 1 or n * problem.sample_bytes <= WAITING_BYTES
            if not (is_small and self._hold(collection.read(slice(0, n)), weights, collection.is_narrow)):
                self._absorb(collection, weights, listener, execution or BatchExecution())
            self._note(collection, weights)

    def add_rows(self, rows: Array) -> bool:
        """Buffer raw samples in memory, (m, prod(raw_shape)), if they have the dtype of the buffer and fit into it.

        Returns
        -------
        bool
            False if nothing was done: `add` reads such samples, or raises an error that says what is wrong with them.
        """
        has_dtype = rows.dtype == self._waiting.dtype and rows.dtype.kind == self.template.raw_kind
        if not has_dtype or (rows.dtype.kind in "iu" and rows.dtype.itemsize == 8):  # see check_digits
            return False
        is_small = len(rows) == 1 or rows.nbytes <= WAITING_BYTES
        if not (is_small and self.template.preparation.is_identity):
            return False
        with self._timed():
            if not self._hold(rows, None, is_narrow=False):
                return False
            self._batches += 1
            self._nbytes += rows.nbytes
        return True

    def _measure_rounding(self, collection: Prepared, weights: Float64 | None) -> None:
        """Measure the rounding errors of the preparation on this batch, whenever the number of samples has doubled."""
        if self.n_samples < 2 * self._measured:
            return
        centre = None
        if collection.n_samples == 1:
            waiting = self._waiting.rows
            if not (self._statistic.n_samples or len(waiting)):
                return
            centre = self._statistic.mean if self._statistic.n_samples else waiting.mean(axis=0, dtype=np.float64)
        errors = measured_errors(collection, weights, centre)
        if errors is not None:
            self._rounding, self._measured = errors.norm, self.n_samples + collection.n_samples

    def _hold(self, rows: Array, weights: Float64 | None, is_narrow: bool) -> bool:
        """Buffer prepared rows; return False, with nothing done, if they are too many or squares of values overflow."""
        self._check_whole()
        if not has_safe_squares(rows, self._coarsest(rows.dtype, is_narrow)):
            return False
        if rows.dtype != self._waiting.dtype:
            self._add_waiting()
            problem = replace(self.problem, itemsize=rows.dtype.itemsize)
            self._waiting = RowBuffer(problem.n_features, rows.dtype, waiting_rows(problem, self.request))
        if len(rows) > self._waiting.most:
            return False
        if self._waiting.count + len(rows) > self._waiting.most:
            self._add_waiting()
        with self._change():
            self._waiting.add(rows, weights)
            self._count(len(rows), weights, rows.dtype, is_narrow)
        return True

    def plan_for(self, collection: Prepared, weights: Float64 | None, execution: BatchExecution) -> Plan:
        """Return the plan of reading a batch that is too large for the buffer.

        Raises
        ------
        BudgetError
            If it does not fit the budget.
        """
        total = self.n_samples + collection.n_samples
        problem = replace(self._widened(collection.dtype, collection.is_narrow), n_samples=total)
        precision = stream_precision(problem, self.request)
        counts = faded(weights, collection.n_samples, self.request.half_life)
        with planning_for(execution.executor):
            return self._plan_of(collection, counts, precision)

    def _plan_of(self, collection: Prepared, weights: Float64 | None, precision: str) -> Plan:
        """Plan to read a collection into a statistic of its own."""
        problem = replace(problem_of(collection), total_weight=None if weights is None else float(weights.sum()))
        return self._planned(problem, self.request.asking(precision=precision))

    def _absorb(
        self, collection: Prepared, weights: Float64 | None, listener: Listener, execution: BatchExecution
    ) -> None:
        """Read a batch within the budget, and add its statistic."""
        plan = self.plan_for(collection, weights, execution)
        counts = faded(weights, collection.n_samples, self.request.half_life)
        inputs: dict[str, Any] = {"weights": counts, "states": collection.states(), "remedy": REMEDY}
        job = Job(collection, plan, execution.executor, listener=listener, stage=execution.stage, **inputs)
        part = self._summed(job)
        self._add_waiting()  # first, as these came before and may count less
        with self._change():
            self._merge(part, collection.n_samples, plan.precision)
            self._count(collection.n_samples, weights, collection.dtype, collection.is_narrow)

    def _add_waiting(self) -> None:
        """Add the buffered rows to the statistic."""
        rows, p = self._waiting.rows, self.problem.n_features
        if not len(rows):
            return
        weights = faded(self._waiting.weights, len(rows), self.request.half_life)
        precision = stream_precision(replace(self.problem, n_samples=self.n_samples), self.request)
        if self._is_exact and len(rows) >= THREAD_ROWS and p <= THREAD_FEATURES:
            collection = prepare(open_collection(rows))
            plan = self._plan_of(collection, weights, precision)
            part = self._summed(Job(collection, plan, LocalExecutor(), weights=weights))
            with self._change():
                self._merge(part, len(rows), precision)
                self._waiting.clear()
        else:
            with self._change():
                statistic = self._writable(precision)
                statistic.discount(self._decay(len(rows)))
                statistic.slack += self._rounding * (len(rows) if weights is None else float(weights.sum()))
                statistic.update(rows, weights=weights)
                statistic.release()
                self._waiting.clear()

    def _merge(self, part: Statistic, n_samples: int, precision: str) -> None:
        """Add the statistic of a batch of `n_samples` samples."""
        # Further threads of BLAS would spin for a tenth of a second afterwards, on cores that multiply the next batch:
        # 10,000 samples of MNIST took 0.13 s instead of 0.09.
        with one_blas_thread() if self._is_exact else nullcontext():
            statistic = self._writable(precision)
            statistic.discount(self._decay(n_samples))
            statistic.slack += self._rounding * part.weight
            statistic.absorb(part)  # type: ignore[arg-type]

    def _decay(self, n_samples: int) -> float:
        """Return the factor by which earlier samples count less after `n_samples` more."""
        half_life = self.request.half_life
        return 1.0 if half_life is None else 2.0 ** (-n_samples / half_life)

    def _summed(self, job: Job) -> Statistic:
        """Return the statistic of a batch alone, read in blocks as in a fit."""
        return accumulate(job) if self._is_exact else sketch_samples(job)

    @property
    def _is_exact(self) -> bool:
        return isinstance(self._statistic, Scatter)

    def _planned(self, problem: Problem, request: Request) -> Plan:
        """Plan for the kind of statistic that was chosen with the first batch."""
        if isinstance(self._statistic, Scatter):
            return batch_plan(scatter_candidates(problem, request), problem, request)
        return batch_plan(sketch_candidates(problem, request, self._statistic.rows), problem, request)

    def _writable(self, precision: str) -> Statistic:
        """Return a writable statistic whose next products have a precision; copy it if a model shares it."""
        if self._shared:
            self._model = self._completed = None  # frees the statistic before it is copied, unless the caller holds it
            self._shared = False
            shared: Statistic = self._statistic
            self._statistic = type(shared).from_state(shared.state(copy=False))
        if isinstance(self._statistic, Scatter) and self._statistic.precision != precision:
            self._statistic = self._statistic.in_precision(precision)
        return self._statistic

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Change the statistic as a whole; if that fails halfway, its sums are unknown and never used again."""
        self._check_whole()
        with stopping_on_signals(), stops_delayed():
            self._changing = True
            yield
            self._changing = False

    def _check_whole(self) -> None:
        """Refuse to use a statistic whose change was interrupted."""
        if self._changing:
            raise DataError(
                "adding a batch was interrupted, and the sums may hold a part of it; call fit, or give all batches to "
                "partial_fit of a new estimator."
            )

    def _coarsest(self, dtype: np.dtype[Any], is_narrow: bool) -> str:
        """Return the lowest precision in which values of a dtype are multiplied, now or with more samples."""
        if (precision := self.request.precision) != "auto":
            return precision
        is_wide = not is_narrow and dtype.itemsize > (4 if dtype.kind == "f" else 2)
        return "double" if is_wide or not self._is_exact else "single"

    def _widened(self, dtype: np.dtype[Any], is_narrow: bool) -> Problem:
        """Return the problem of all samples so far and others of a dtype; it needs float64 if either type does."""
        wider = replace(self.problem, itemsize=dtype.itemsize, kind=dtype.kind, narrow=is_narrow)
        return wider if self.problem.suits_single else self.problem

    def _count(self, n_samples: int, weights: Float64 | None, dtype: np.dtype[Any], is_narrow: bool) -> None:
        """Count further samples, and drop the model, which lacks them."""
        self.n_samples += n_samples
        counts = faded(weights, n_samples, self.request.half_life)
        self.weight *= self._decay(n_samples)
        self.weight += n_samples if counts is None else float(counts.sum())
        self.weighted = self.weighted or weights is not None
        problem = self.problem
        if (dtype.itemsize, dtype.kind, is_narrow) != (problem.itemsize, problem.kind, problem.narrow):
            self.problem = self._widened(dtype, is_narrow)
        self._model = self._completed = None

    def _note(self, collection: Prepared, weights: Float64 | None) -> None:
        """Record the source of a batch for the provenance."""
        raw, about = collection.raw, self._about
        if raw.source not in self._sources:
            self._sources.append(raw.source)
        units, dtype = raw.attributes.get("units"), raw.dtype.str
        about["dtype"] = dtype if about.setdefault("dtype", dtype) == dtype else None
        about.setdefault("units", units if isinstance(units, str) else None)
        about["skipped"] = [*(about.get("skipped") or []), *(list(item) for item in collection.skipped)]
        self._batches += 1
        self._nbytes += original_bytes(raw)
        if weights is not None:
            self._weights_digest = digest(self._weights_digest, weights_digest(weights))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - began

    # -- results

    @property
    def dtype(self) -> str | None:
        """Dtype of the raw samples; None if batches differ."""
        return self._about.get("dtype")

    @property
    def statistic(self) -> Statistic:
        """Statistic of all samples so far, which callers must not change."""
        self._check_whole()
        self._add_waiting()
        return self._statistic

    def shortage(self, request: Request) -> str:
        """Return a message if the samples so far are too few for a request; else an empty string."""
        k, n, p = request.n_components, self.n_samples, self.problem.n_features
        needed = max(2, min(k, p)) if isinstance(k, int) else 2
        if k == "mle" and self.weight < p:
            return f"n_components='mle' needs at least as many samples as features, {p}, and has seen {self.weight:g}"
        if n < needed:
            return f"n_components={k!r} needs at least {needed} samples and has seen {n}"
        if self.statistic.n_samples == 1:
            return "variance needs at least two samples of weight above 0, and has seen one"
        if self.weight <= 1:
            return f"variance needs samples whose weights add up to more than 1, and has seen {self.weight:g}"
        return ""

    def model(self, request: Request, listener: Listener) -> PCAModel:
        """Return the model of all samples so far, computed unless it is known; see `shortage`.

        Raises
        ------
        RequestError
            If the statistic cannot give the number of components.
        DataError
            If all samples are equal.
        BudgetError
            If solving does not fit the budget.
        """
        request = self._effective_request(request)
        if self._model is None or request != self._solved_request:
            self._model, self._completed, self._solved_request = None, None, request
            with self._timed():
                decomposition, plan = self._decomposed(request, listener)
            components = decomposition.components
            numbers = numbers_of(decomposition, self.template.sample_shape, self.template.mask, components)
            provenance = provenance_of(self._data(), plan, decomposition, seconds=self._seconds, peak=None)
            self._model, self._shared = replace(self.template, **numbers, provenance=provenance), True
        return self._model

    def completed(self, model: PCAModel, count: int) -> PCAModel:
        """Return the last result of `model` with `count` components, made once; see `with_n_components`."""
        if model.n_components == count:
            return model
        if self._completed is None or self._completed.n_components != count:
            self._completed = with_n_components(model, count)
        return self._completed

    def _effective_request(self, request: Request) -> Request:
        """Return the request that decides the answer: its n_components and memory, all else of the first batch."""
        return replace(self.request.asking(n_components=request.n_components, method="auto"), memory=request.memory)

    def _decomposed(self, request: Request, listener: Listener) -> tuple[Decomposition, Plan]:
        """Decompose the statistic of all samples so far."""
        statistic, k, p = self.statistic, request.n_components, self.problem.n_features
        if isinstance(k, int) and k > p:
            raise RequestError(f"n_components={k} exceeds {p}, the number of features; ask for at most that.")
        weight = self.weight if self.weighted else None
        plan = self._planned(replace(self.problem, n_samples=self.n_samples, total_weight=weight), request)
        plan = replace(plan, precision=statistic.precision, threads=1, ahead=0)
        if isinstance(statistic, Scatter):
            with self._change():
                statistic.settle()
            check_variance(statistic.trace, self._source, plan)
            check_products(statistic.probe_products, self._source, plan)
            return decompose(statistic, plan, listener), plan
        if k in (None, "mle") or (isinstance(k, int) and k > statistic.rows):
            raise RequestError(
                f"n_components={k!r} is more than a sketch of {statistic.rows} rows can tell; ask for at most "
                f"{statistic.rows}, or begin again with that n_components, or with the memory for {p} x {p}."
            )
        check_variance(statistic.trace, self._source, plan)
        decomposition = decompose_sketch(statistic, plan, listener)
        if statistic.shrunk and not self._warned:
            self._warned = True
            listener(Warned(_sketch_errors(statistic, decomposition)))
        return decomposition, plan

    @property
    def _source(self) -> str:
        more = f" and {len(self._sources) - SOURCES} more" if len(self._sources) > SOURCES else ""
        return ", ".join(self._sources[:SOURCES]) + more

    def _data(self) -> dict[str, Any]:
        """Return the description of the data in the provenance."""
        statistic = self._statistic
        identity = (self._source, self.n_samples, statistic.mean.tobytes(), statistic.trace)
        return {
            "source": self._source,
            "fingerprint": digest(*identity),
            **self._about,
            "nbytes": self._nbytes,
            "opened": shared_record([self.template.provenance.get("opened")]),
            "reading": self.template.provenance.get("reading"),
            "sample_weight": self._weights_digest,
            "batches": self._batches,
        }


def needs_all_samples(missing: str) -> str:
    """Return the message that a rule for missing values does not work with batches."""
    return (
        f"missing={missing!r} needs a pass over all samples before a fit, and batches never come together; leave "
        "samples out or mask pixels beforehand, or fit all samples at once."
    )


def _sketch_errors(sketch: FrequentDirections, decomposition: Decomposition) -> str:
    """Return the warning that variances are those of a sketch, with their errors."""
    p, bounds = sketch.n_features, 100 * decomposition.residual_bound
    return (
        f"the {p} x {p} scatter matrix does not fit memory: samples were sketched in {sketch.rows} rows. Each variance "
        f"is right to {sketch.shrunk / 2 / (sketch.weight - 1):.3g}, {bounds[0]:.2g} % of the first and "
        f"{bounds[-1]:.2g} % of the last (error_bound_); begin with more memory, or more n_components, for less."
    )


def _no_statistic(method: object) -> str:
    """Return the reason why a model of a method has no statistic, and the remedy."""
    if method in ("covariance", SKETCH):
        return "is without its statistic; load it with statistic=True (and save it with keep_state=True)."
    return (
        f"was fitted by method {method!r}, which leaves nothing that batches could be added to; fit it with "
        "method='covariance', or give all batches to partial_fit of a new estimator."
    )


def _template(collection: Prepared) -> PCAModel:
    """Return a model without components, which later batches are compared with."""
    none, p = np.empty(0), collection.n_features
    nothing = Decomposition(np.zeros(p), None, none, none, none, 0.0, 0, 0.0)
    opened = None if collection.raw.opened is None else collection.raw.opened.to_json()
    provenance = {"reading": collection.raw.reading, "opened": opened}
    return cast("PCAModel", model_of(collection, nothing, provenance, np.empty((0, p))))


def _in_memory(problem: Problem) -> Problem:
    """Return the sizes of a problem with prepared samples in memory, in place of the first batch's storage."""
    p, machine = problem.n_features, replace(problem.machine, held=0)
    none: dict[str, Any] = dict.fromkeys(("prepared_bytes", "decode_bytes", "scratch_bytes", "measuring_bytes"), 0)
    chunks: dict[str, Any] = {"chunk_samples": 1, "chunk_features": p, "encoded": False, "fills": True}
    return replace(problem, machine=machine, row_bytes=p * problem.itemsize, total_weight=None, **chunks, **none)
