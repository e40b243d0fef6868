"""Sizes of a collection and of this machine for planning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .. import machine
from ..planning.request import Machine, Problem
from ..readers import Collection
from . import Prepared


def this_machine(held: int = 0) -> Machine:
    """Return the cores and the memory limit of this process; samples hold `held` bytes of it all the time."""
    return Machine(machine.cores(), *machine.memory_limit(), held, machine.integer_units())


def problem_of(collection: Collection) -> Problem:
    """Return the sizes of a collection and of this machine for planning."""
    stored, of_preparation = collection.storage, dict[str, Any]()
    if isinstance(collection, Prepared):
        of_preparation = {**vars(collection.preparing), "learning_bytes": collection.learning_bytes}
    if stored.sparse is not None:
        of_preparation |= {"sparse_values": stored.sparse.values, "sparse_bytes": stored.sparse.held_bytes}
    return Problem(
        n_samples=collection.n_samples,
        n_features=collection.n_features,
        sample_shape=collection.sample_shape,
        row_bytes=collection.row_bytes,
        itemsize=collection.dtype.itemsize,
        kind=collection.dtype.kind,
        chunk_samples=stored.chunks.samples,
        chunk_features=stored.chunks.features,
        encoded=stored.encoded,
        keeps=stored.keeps,
        fills=stored.fills,
        decode_bytes=stored.decode_bytes,
        machine=this_machine(stored.converted_bytes),
        **of_preparation,
    )


def multiplied_on(device: str, problem: Problem, known: int | None = None, beside: int = 0) -> Problem:
    """Return a problem whose products a device computes, with its free memory, or what was free when a fit began.

    What a feature map takes of it, `beside`, is not free.

    One block at a time is multiplied there, so that threads and integer units of the processor are not used.

    Raises
    ------
    RequestError
        If torch is missing, or the device is.
    """
    free = max(0, machine.device_memory(device) - beside)
    there: dict[str, Any] = {"cores": 1, "integer_units": "none", "device": device, "device_memory": known or free}
    return replace(problem, machine=replace(problem.machine, **there))


def problem_of_scores(n_samples: int, k: int, itemsize: int) -> Problem:
    """Return the sizes of k scores of each sample, before they are written."""
    return Problem(
        n_samples=n_samples,
        n_features=k,
        sample_shape=(k,),
        row_bytes=itemsize * k,
        itemsize=itemsize,
        kind="f",
        chunk_samples=1,
        chunk_features=k,
        machine=this_machine(),
    )
