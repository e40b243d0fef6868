"""`IncrementalFit`: the model of samples that come in batches, solved for when it is asked for.

Batches are added to a statistic: the scatter matrix, or a sketch of it (`streampca.planning.incremental` decides).
Small ones wait in a buffer until there are enough rows to be multiplied together; larger ones are read within the
budget as in any fit, into a statistic of their own, which is added when they were read to the end. So a batch that is
refused, or whose reading is broken off, leaves everything as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from ..accumulators import FrequentDirections, RowBuffer, Scatter
from ..accumulators.finite import has_safe_squares
from ..errors import DataError, ModelError, RequestError
from ..events import Listener, Warned
from ..execution import Executor, LocalExecutor
from ..execution.checkpoint import StageCheckpoint
from ..execution.executor import as_of
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
from .preparation_rounding import measured_errors
from .prepare import prepare

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

Statistic = Scatter | FrequentDirections

SOURCES = 8  # named in the provenance of a model
REMEDY = (  # of a sample with missing values
    "Leave it out (--samples, --where; samples=, where=), or fill it: what is missing in all samples shows only where "
    "they are fitted together (--missing, missing=)."
)
THREAD_ROWS = 1024  # that wait, from which on threads gain more than it takes to start them


@dataclass(frozen=True)
class Running:
    """Executor and checkpoint of the pass over a large batch.

    Attributes
    ----------
    executor : Executor
        Folds its samples.
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
        Model without components of the same raw samples, which later batches are compared with.
    problem : Problem
        Sizes of all samples so far.
    request : Request
        Its seed is that of all batches.
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
        self._asked: Request | None = None
        self._lent = False  # whether a model holds the statistic, which must not change any more then
        self._rounding, self._measured = 0.0, 0  # of the steps, a unit of weight; and samples when that was measured
        self._changing = False  # whether the statistic is being changed, or was when that was broken off
        self._warned = False
        self._sources: list[str] = []
        self._batches, self._nbytes, self._seconds = 0, 0, 0.0
        self._weights_digest: str | None = None
        self._about: dict[str, Any] = {}

    @classmethod
    def begin(cls, raw: Collection, preparation: Preparation | None, request: Request) -> Self:
        """Plan for batches like a first one, of which nothing but sizes is taken yet.

        Raises
        ------
        RequestError, BudgetError
            See `incremental_plan`; or if the preparation takes a pass over all samples.
        """
        if request.missing != "error":
            raise RequestError(
                f"missing={request.missing!r} takes a pass over all samples before a fit, and batches never come "
                "together; leave samples out or mask pixels beforehand, or fit all samples at once."
            )
        if preparation is not None and preparation.reads_samples:
            name, given = "what anomaly, detrend or standardize take off", "preparation of a model"
            if isinstance(preparation.mask, str):
                name, given = "mask='valid'", "mask as an array of True and False"
            elif not preparation.is_mapped:
                name = "a feature map"
            raise RequestError(
                f"{name} is read off all samples before a fit, and batches never come together; give the {given}, or "
                "fit all samples at once."
            )
        collection = prepare(raw, None if preparation is None else preparation.in_precision(request.precision))
        problem = problem_of(collection)
        plan = incremental_plan(problem, request)
        statistic: Statistic
        if plan.method == SKETCH:
            statistic = FrequentDirections(problem.n_features, rows=plan.product_rows)
        else:
            how: dict[str, Any] = {"precision": stream_precision(problem, request), "seed": request.seed}
            statistic = Scatter(problem.n_features, product_rows=plan.product_rows, **how)
        return cls(_template(collection), _bare(problem), request, statistic)

    @classmethod
    def going_on(cls, model: PCAModel, request: Request) -> Self:
        """Go on from a model that has its statistic.

        Raises
        ------
        ModelError
            If it has none, or is of a part of a collection.
        """
        statistic, about = model.statistic, model.provenance
        plan = about.get("plan") or {}
        if not isinstance(statistic, Statistic):
            raise ModelError(f"{model.name} {_why_not(plan.get('method'))}")
        if "part" in about:
            part = "{}/{}".format(*about["part"])
            raise ModelError(f"{model.name} is part {part} of a collection; merge the parts, and go on from the whole.")
        known = {each.name for each in fields(Problem)}
        problem = Problem(**{name: value for name, value in plan["problem"].items() if name in known})
        problem = replace(problem, sample_shape=tuple(problem.sample_shape), machine=this_machine())
        seed = statistic.seed if isinstance(statistic, Scatter) else request.seed
        new = cls(_without_components(model), _bare(problem), request.asking(random_state=seed), statistic)
        new.n_samples, new.weight = problem.n_samples, statistic.weight
        new.weighted = new.weighted or model.total_weight is not None
        new._sources, new._batches = [str(about.get("source"))], int(about.get("batches", 1))
        new._nbytes, new._weights_digest = about.get("nbytes") or 0, about.get("sample_weight")
        new._about = {name: about.get(name) for name in ("dtype", "units", "skipped")}
        new._model, new._lent = model, True
        wanted = request.n_components
        if plan["request"].get("n_components") == wanted and (wanted is None or model.n_components):
            new._asked = new._alike(request)
        return new

    # -- batches

    def add(self, raw: Collection, sample_weight: Any, listener: Listener, running: Running | None = None) -> None:
        """Add a batch: a collection of any size from 1 sample.

        Raises
        ------
        ModelError
            If its samples are of another shape, kind or grid than those before.
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
                self._absorb(collection, weights, listener, running or Running())
            self._note(collection, weights)

    def add_rows(self, rows: Array) -> bool:
        """Add raw samples in memory, (m, prod(raw_shape)), if they are like those that wait and can wait, too.

        Returns
        -------
        bool
            False where they cannot, and nothing was done: `add` takes them, or says what is wrong with them.
        """
        waiting = self._waiting
        is_alike = rows.dtype == waiting.dtype and rows.dtype.kind == self.template.raw_kind
        if not is_alike or (rows.dtype.kind in "iu" and rows.dtype.itemsize == 8):  # see check_digits
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
        """Measure what the steps round, by a batch whenever there are twice as many samples as the last time."""
        if self.n_samples < 2 * self._measured:
            return
        centre = None
        if collection.n_samples == 1:
            waiting = self._waiting.rows
            if not (self._statistic.n_samples or len(waiting)):
                return
            centre = self._statistic.mean if self._statistic.n_samples else waiting.mean(axis=0, dtype=np.float64)
        found = measured_errors(collection, weights, centre)
        if found is not None:
            self._rounding, self._measured = found.norm, self.n_samples + collection.n_samples

    def _hold(self, rows: Array, weights: Float64 | None, is_narrow: bool) -> bool:
        """Let prepared rows wait, if they can and nothing is wrong with them; return whether they do."""
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

    def plan_for(self, collection: Prepared, weights: Float64 | None, running: Running) -> Plan:
        """Return the plan by which a batch is read, if it is too large to wait.

        Raises
        ------
        BudgetError
            If it does not fit the budget.
        """
        total = self.n_samples + collection.n_samples
        problem = replace(self._widened(collection.dtype, collection.is_narrow), n_samples=total)
        precision = stream_precision(problem, self.request)
        counts = faded(weights, collection.n_samples, self.request.half_life)
        with as_of(running.executor):
            return self._plan_of(collection, counts, precision)

    def _plan_of(self, collection: Prepared, weights: Float64 | None, precision: str) -> Plan:
        problem = replace(problem_of(collection), total_weight=None if weights is None else float(weights.sum()))
        return self._planned(problem, self.request.asking(precision=precision))

    def _absorb(self, collection: Prepared, weights: Float64 | None, listener: Listener, running: Running) -> None:
        """Read a batch within the budget, and add what it sums up to."""
        dtype, plan = collection.dtype, self.plan_for(collection, weights, running)
        counts = faded(weights, collection.n_samples, self.request.half_life)
        how: dict[str, Any] = {"weights": counts, "listener": listener, "stage": running.stage}
        part = self._summed(Job(collection, plan, running.executor, states=collection.states(), remedy=REMEDY, **how))
        precision = plan.precision
        self._add_waiting()
        with self._change():
            self._merge(part, collection.n_samples, precision)
            self._count(collection.n_samples, weights, dtype, collection.is_narrow)

    def _add_waiting(self) -> None:
        """Add the rows that wait to the statistic."""
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
                statistic = self._owned(precision)
                statistic.discount(self._kept_after(len(rows)))
                statistic.slack += self._rounding * (len(rows) if weights is None else float(weights.sum()))
                statistic.update(rows, weights=weights)
                statistic.release()
                self._waiting.clear()

    def _merge(self, part: Statistic, n_samples: int, precision: str) -> None:
        """Add the statistic of a batch of so many samples, a scatter matrix in one thread of BLAS.

        The others would spin on for a tenth of a second after that, on cores that multiply the next batch: 10,000
        samples of MNIST took 0.13 s instead of 0.09.
        """
        with one_blas_thread() if self._is_exact else nullcontext():
            statistic = self._owned(precision)
            statistic.discount(self._kept_after(n_samples))
            statistic.slack += self._rounding * part.weight
            statistic.absorb(part)  # type: ignore[arg-type]

    def _kept_after(self, n_samples: int) -> float:
        """Return the factor by which samples count less after so many others."""
        half_life = self.request.half_life
        return 1.0 if half_life is None else 2.0 ** (-n_samples / half_life)

    def _summed(self, job: Job) -> Statistic:
        """Return the statistic of a batch alone, read as in a fit: in blocks, in threads where these gain."""
        return accumulate(job) if self._is_exact else sketch_samples(job)

    @property
    def _is_exact(self) -> bool:
        return isinstance(self._statistic, Scatter)

    def _planned(self, problem: Problem, request: Request) -> Plan:
        """Plan for the statistic that was chosen with the first batch."""
        if isinstance(self._statistic, Scatter):
            return batch_plan(scatter_candidates(problem, request), problem, request)
        return batch_plan(sketch_candidates(problem, request, self._statistic.rows), problem, request)

    def _owned(self, precision: str) -> Statistic:
        """Return the statistic to be changed: a copy where a model holds it, its further products of a precision."""
        if self._lent:
            self._model = self._completed = None  # their memory is given back first, if nobody else holds them
            self._lent = False
            held: Statistic = self._statistic
            self._statistic = type(held).from_state(held.state(copy=False))
        if isinstance(self._statistic, Scatter) and self._statistic.precision != precision:
            self._statistic = self._statistic.in_precision(precision)
        return self._statistic

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Change the statistic inside as a whole: where that fails, nobody knows what the sums hold."""
        self._check_whole()
        with stopping_on_signals(), stops_delayed():
            self._changing = True
            yield
            self._changing = False

    def _check_whole(self) -> None:
        """Refuse to go on with a statistic whose change was broken off."""
        if self._changing:
            raise DataError(
                "a batch was being added when that was broken off, and what is left of it is not known; call fit, or "
                "give all batches to partial_fit of a new estimator."
            )

    def _coarsest(self, dtype: np.dtype[Any], is_narrow: bool) -> str:
        """Return the precision that values of a dtype may be multiplied in, now or when there are more samples."""
        asked, wide = self.request.precision, not is_narrow and dtype.itemsize > (4 if dtype.kind == "f" else 2)
        return asked if asked != "auto" else "double" if wide or not self._is_exact else "single"

    def _widened(self, dtype: np.dtype[Any], is_narrow: bool) -> Problem:
        """Return the problem of all samples so far and others of a dtype: float32 holds all of them, or not."""
        wider = replace(self.problem, itemsize=dtype.itemsize, kind=dtype.kind, narrow=is_narrow)
        return wider if self.problem.suits_single else self.problem

    def _count(self, n_samples: int, weights: Float64 | None, dtype: np.dtype[Any], is_narrow: bool) -> None:
        """Count further samples, and forget the model of those before."""
        self.n_samples += n_samples
        counts = faded(weights, n_samples, self.request.half_life)
        self.weight *= self._kept_after(n_samples)
        self.weight += n_samples if counts is None else float(counts.sum())
        self.weighted = self.weighted or weights is not None
        now = self.problem
        if (dtype.itemsize, dtype.kind, is_narrow) != (now.itemsize, now.kind, now.narrow):
            self.problem = self._widened(dtype, is_narrow)
        self._model = self._completed = None

    def _note(self, collection: Prepared, weights: Float64 | None) -> None:
        """Note for the provenance where a batch came from."""
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

    # -- what was found

    @property
    def dtype(self) -> str | None:
        """Dtype of the raw samples, where all batches had the same."""
        return self._about.get("dtype")

    @property
    def statistic(self) -> Statistic:
        """The statistic of all samples so far; not to be changed."""
        self._check_whole()
        self._add_waiting()
        return self._statistic

    def lacking(self, request: Request) -> str:
        """Say what the samples so far lack for what is asked; an empty string where it is nothing."""
        wanted, n, p = request.n_components, self.n_samples, self.problem.n_features
        needed = max(2, min(wanted, p)) if isinstance(wanted, int) else 2
        if wanted == "mle" and self.weight < p:
            return f"n_components='mle' needs at least as many samples as features, {p}, and has seen {self.weight:g}"
        if n < needed:
            return f"n_components={wanted!r} needs at least {needed} samples and has seen {n}"
        if self.weight <= 1:
            return f"variance needs samples whose weights add up to more than 1, and has seen {self.weight:g}"
        return ""

    def model(self, request: Request, listener: Listener) -> PCAModel:
        """Return the model of all samples so far, solved for if it is not known yet; see `lacking`.

        Raises
        ------
        RequestError
            If the statistic cannot give what is asked.
        DataError
            If all samples are equal.
        BudgetError
            If solving does not fit the budget.
        """
        request = self._alike(request)
        if self._model is None or request != self._asked:
            self._model, self._completed, self._asked = None, None, request
            with self._timed():
                found, plan = self._decomposed(request, listener)
            numbers = numbers_of(found, self.template.sample_shape, self.template.mask, found.components)
            provenance = provenance_of(self._data(), plan, found, seconds=self._seconds, peak=None)
            self._model, self._lent = replace(self.template, **numbers, provenance=provenance), True
        return self._model

    def completed(self, found: PCAModel, count: int) -> PCAModel:
        """Return what `model` gave last with so many components, see `with_n_components`; made once."""
        if found.n_components == count:
            return found
        if self._completed is None or self._completed.n_components != count:
            self._completed = with_n_components(found, count)
        return self._completed

    def _alike(self, request: Request) -> Request:
        """Return a request as far as it concerns the answer, with the seed and precision of all batches."""
        return replace(self.request.asking(n_components=request.n_components, method="auto"), memory=request.memory)

    def _decomposed(self, request: Request, listener: Listener) -> tuple[Decomposition, Plan]:
        statistic, wanted, p = self.statistic, request.n_components, self.problem.n_features
        if isinstance(wanted, int) and wanted > p:
            raise RequestError(f"n_components={wanted} exceeds {p}, the number of features; ask for at most that.")
        weight = self.weight if self.weighted else None
        plan = self._planned(replace(self.problem, n_samples=self.n_samples, total_weight=weight), request)
        plan = replace(plan, precision=statistic.precision, threads=1, ahead=0)
        if isinstance(statistic, Scatter):
            with self._change():
                statistic.settle()
            check_variance(statistic.trace, self._source, plan)
            check_products(statistic.probe_products, self._source, plan)
            return decompose(statistic, plan, listener), plan
        if wanted in (None, "mle") or (isinstance(wanted, int) and wanted > statistic.rows):
            raise RequestError(
                f"n_components={wanted!r} is more than a sketch of {statistic.rows} rows can tell; ask for at most "
                f"{statistic.rows}, or begin again with that n_components, or with the memory for {p} x {p}."
            )
        check_variance(statistic.trace, self._source, plan)
        found = decompose_sketch(statistic, plan, listener)
        if statistic.shrunk and not self._warned:
            self._warned = True
            listener(Warned(_sketched(statistic, found)))
        return found, plan

    @property
    def _source(self) -> str:
        more = f" and {len(self._sources) - SOURCES} more" if len(self._sources) > SOURCES else ""
        return ", ".join(self._sources[:SOURCES]) + more

    def _data(self) -> dict[str, Any]:
        """Return what the provenance says of the data."""
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


def _sketched(sketch: FrequentDirections, found: Decomposition) -> str:
    p, bounds = sketch.n_features, 100 * found.error_bound
    return (
        f"the {p} x {p} scatter matrix does not fit memory: samples were sketched in {sketch.rows} rows. Each variance "
        f"is right to {sketch.shrunk / 2 / (sketch.weight - 1):.3g}, {bounds[0]:.2g} % of the first and "
        f"{bounds[-1]:.2g} % of the last (error_bound_); begin with more memory, or more n_components, for less."
    )


def _why_not(method: object) -> str:
    """Say why there is nothing to go on from, and what to do."""
    if method in ("covariance", SKETCH):
        return "is without its statistic; load it with statistic=True (and save it with keep_state=True)."
    return (
        f"was fitted by method {method!r}, which leaves nothing that batches could be added to; fit it with "
        "method='covariance', or give all batches to partial_fit of a new estimator."
    )


def _template(collection: Prepared) -> PCAModel:
    """Return a model without components of a collection, to hold other collections against."""
    none, p = np.empty(0), collection.n_features
    nothing = Decomposition(np.zeros(p), None, none, none, none, 0.0, 0, 0.0)
    opened = None if collection.raw.opened is None else collection.raw.opened.to_json()
    provenance = {"reading": collection.raw.reading, "opened": opened}
    return cast("PCAModel", model_of(collection, nothing, provenance, np.empty((0, p))))


def _without_components(model: PCAModel) -> PCAModel:
    none = np.empty(0)
    left: dict[str, Any] = {"explained_variance": none, "error_bound": none, "angle_bound": none, "statistic": None}
    return replace(model, components=np.empty((0, *model.sample_shape)), **left)


def _bare(problem: Problem) -> Problem:
    """Return the sizes of samples in memory, whatever those of the first batch were stored in."""
    p, width = problem.n_features, problem.itemsize
    here: dict[str, Any] = {"row_bytes": p * width, "prepared_bytes": 0, "decode_bytes": 0, "scratch_bytes": 0}
    here |= {"machine": replace(problem.machine, held=0), "measuring_bytes": 0}
    return replace(problem, chunk_samples=1, chunk_features=p, encoded=False, fills=True, total_weight=None, **here)
