"""A few hundred plans, each as one line of `data/plan_digests.txt`: none changes unseen.

Where a change is meant, write the file anew (``python tests/test_plan_digests.py``) and say why in the commit.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import partial
from itertools import chain, product
from pathlib import Path

import by_options
from planned import PROBLEMS, problem

from streampca.errors import BudgetError
from streampca.kinds.run import Part
from streampca.planning import make_plan, merge_plan, part_plan, plan_application
from streampca.planning.copy_plan import plan_copy
from streampca.planning.embedding import plan_coordinates
from streampca.planning.hsic import DELTA, HsicRequest, Side, plan_hsic
from streampca.planning.incremental import incremental_plan
from streampca.planning.learning import plan_learning
from streampca.planning.neighbors import NeighborsRequest, plan_neighbors
from streampca.planning.transform_pieces import Parts, plan_pieces
from streampca.units import GIB, MIB

FILE = Path(__file__).parent / "data" / "plan_digests.txt"
BUDGETS = (40 * MIB, 300 * MIB, 4 * GIB)
LAYOUTS = ("digits", "tiny", "raw doubles", "faces in files", "large chunks", "1 GB, chunks across")
OF_TARGETS = {
    "supervised-pca": {"target_width": 10, "target_rank": 9},
    "fisher-discriminant": {"target_width": 3, "target_rank": 2},
    "supervised-principal-components": {"target_width": 1},
}


def of_fits():
    """Yield descriptions and makers of plans of fits, parts, merges and batches."""
    for method, (number, name), memory in product(("covariance", "dual", "em"), enumerate(LAYOUTS), BUDGETS):
        how = ({}, {"output": True}, {"workers": 3})[number % 3] | {"missing": "em" if method == "em" else "error"}
        for wanted in (2, 0.9):
            request = by_options.request(wanted, method, memory, **how)
            yield f"{method} {wanted}", name, memory, partial(make_plan, PROBLEMS[name], request)
    for name, memory in product(("digits", "raw doubles", "large chunks"), BUDGETS):
        asked = PROBLEMS[name], by_options.request(2, memory=memory)
        makers = {"auto": make_plan, "merge": merge_plan, "batches": incremental_plan}
        yield from ((kind, name, memory, partial(make, *asked)) for kind, make in makers.items())
        yield "part", name, memory, partial(part_plan, *asked, Part(2, 5))
    for (kind, target), name, memory in product(OF_TARGETS.items(), ("digits", "faces in files"), BUDGETS):
        layout, request = replace(PROBLEMS[name], **target), by_options.request(1, memory=memory, kind=kind)
        yield kind, name, memory, partial(make_plan, layout, request)
    for n, wanted, memory in product((40, 900, 6000), (None, 2), BUDGETS):
        request = by_options.request(wanted, memory=memory, kind="classical-mds", metric="precomputed")
        yield f"symmetric {wanted}", str(n), memory, partial(make_plan, problem(n, (n,), "f4"), request)
    for wanted, memory in product((5, 0.9), BUDGETS):
        request = by_options.request(wanted, memory=memory, kind="kernel-pca", kernel="rbf", output=True)
        layout = replace(PROBLEMS["faces in files"], kernel_rank=399)
        yield f"kernel {wanted}", "faces in files", memory, partial(make_plan, layout, request)


def of_others():
    """Yield descriptions and makers of plans of everything else."""
    for name, memory in product(LAYOUTS, BUDGETS):
        layout, p = PROBLEMS[name], PROBLEMS[name].n_features
        sides = Side(layout, None, "rbf"), Side(layout, 10, DELTA)
        parts = Parts(20, p, 80 * p, 80, 8 * p, min(p, 6000), MIB, 4, layout.itemsize, 4, memory > GIB)
        applied = {"components_shape": (20, p), "component_itemsize": 4, "out_bytes": 160, "threads": 2, "ahead": 1}
        neighbors = NeighborsRequest(min(5, layout.n_samples - 1), memory=memory)
        makers = {
            "neighbors": partial(plan_neighbors, layout, neighbors),
            "hsic": partial(plan_hsic, *sides, HsicRequest(landmarks=10, memory=memory)),
            "application": partial(plan_application, problem=layout, memory=memory, **applied),
            "pieces": partial(plan_pieces, layout, parts, memory),
            "copy": partial(plan_copy, layout, memory),
            "learning": partial(plan_learning, layout, 12, memory),
        }
        for kind in ("isomap", "locally-linear-embedding", "spectral-embedding", "maximum-variance-unfolding"):
            makers[kind] = partial(plan_coordinates, layout, by_options.request(2, memory=memory, kind=kind))
        yield from ((kind, name, memory, make) for kind, make in makers.items())


def line_of(kind, name, memory, make):
    """One plan or refusal in a line: the start in words, and a digest of what decides it and its memory by name."""
    try:
        plan = make()
    except BudgetError as error:
        return f"{kind}, {name}, {memory // MIB} MiB: refused, {digest_of(str(error))}"
    estimate = plan.memory_estimate
    facts = [phase.items for phase in getattr(estimate, "phases", (estimate,))]
    if hasattr(plan, "to_json"):
        facts.append({**plan.to_json(), "seconds": 0})
    elif hasattr(plan, "decisive"):
        facts.append(plan.decisive())
    else:
        facts += [getattr(plan, field, None) for field in ("block_rows", "chunk_rows", "tile", "chunk", "pieces")]
    method = getattr(plan, "method", "planned")
    digest = digest_of(json.dumps(facts, sort_keys=True))
    return f"{kind}, {name}, {memory // MIB} MiB: {method}, {estimate.total} B, {digest}"


def digest_of(text):
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def lines():
    return [line_of(*described) for described in chain(of_fits(), of_others())]


def test_plans_are_those_written_down():
    """Method, blocks, passes and memory by name of every planner."""
    assert lines() == FILE.read_text().splitlines()


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()))
