"""Graphs of nearest neighbours: equal to a comparison of all pairs, however they are found, cut, stopped and stored."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import in_one_file, layouts, problem, remedy
from resumed import Died, dying, number
from shell import measured, refused, succeeded, typed

import streampca
from streampca.errors import BudgetError, DataError, ModelError, OutputError, RequestError, Stopped
from streampca.events import BlockDone, Planned
from streampca.execution.checkpoint import Checkpointing
from streampca.fitting import neighbors as making
from streampca.fitting.open_fit import prepare
from streampca.manifold import graph_components
from streampca.manifold.graph_components import component_labels, largest_component
from streampca.manifold.graph_facts import sentences
from streampca.manifold.neighbor_graph import NeighborGraph
from streampca.manifold.neighbors import NeighborSearch
from streampca.manifold.stored_graph import load_graph, save_graph
from streampca.planning.neighbors import NeighborsRequest, algorithm_of, plan_neighbors
from streampca.signals import stopping_on_signals
from streampca.units import GIB, MIB


def by_comparison(references, k, rows=None):
    """Return the neighbours of rows, or of the references themselves, by the definition."""
    others = references if rows is None else rows
    differences = others[:, None].astype(float) - references[None].astype(float)
    distances = np.sqrt((differences**2).sum(axis=-1))
    found = np.lexsort((np.broadcast_to(np.arange(len(references)), distances.shape), distances))
    if rows is None:
        found = found[found != np.arange(len(references))[:, None]].reshape(len(references), -1)
    return found[:, :k], np.take_along_axis(distances, found[:, :k], axis=1)


def same(found, expected):
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def of(graph):
    return graph.indices, graph.distances


def cut_to(monkeypatch, rows):
    """Have plans look for the neighbours of so many samples at a time."""
    monkeypatch.setattr(making, "make_neighbors_plan", lambda *given: replace(plan_neighbors(*given), block_rows=rows))


RANDOM = np.random.default_rng(0)
NORMAL = RANDOM.standard_normal((250, 9))
SAMPLES = {
    "doubles": NORMAL,
    "singles far from the origin": (NORMAL + 1e4).astype(np.float32),
    "doubles far from the origin": NORMAL * 1e-6 + 1e6,
    "small whole numbers, with ties": RANDOM.integers(0, 2, (250, 8)).astype(np.uint8),
    "three features, with ties": RANDOM.integers(0, 3, (250, 3)),
    "one feature": NORMAL[:, :1],
    "100 equal samples": np.concatenate([np.zeros((100, 9)), NORMAL[:150]]),
    "near-duplicates": np.concatenate([NORMAL, NORMAL + 1e-12]),
    "two scales": np.concatenate([NORMAL[:100], 5 + 1e-9 * NORMAL[:100]]),
    "large": NORMAL * 1e60,
}


@pytest.mark.parametrize("x", SAMPLES.values(), ids=SAMPLES)
def test_equal_to_a_comparison_of_all_pairs(x, monkeypatch):
    """To the last bit, whatever the blocks."""
    expected = by_comparison(x, 7)
    assert same(of(streampca.neighbors(x, n_neighbors=7)), expected)
    cut_to(monkeypatch, 13)
    assert same(of(streampca.neighbors(x, n_neighbors=7)), expected)


@pytest.mark.parametrize("x", SAMPLES.values(), ids=SAMPLES)
def test_nearest_of_other_rows(x):
    rows = np.concatenate([x[::10], x[:9] + x[1:10]])
    for references, k, asked in ((x, 4, rows), (x[:3], 3, x)):
        search = NeighborSearch(references, algorithm_of(x.shape[1]))
        assert same(search.query(asked, k), by_comparison(references, k, asked))


@given(st.integers(2, 60), st.integers(1, 8), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_ties_are_broken_by_number(n, p, values, seed):
    x = np.random.default_rng(seed).integers(0, values, (n, p))
    x[0, 0] = -1  # else all may be equal
    k = 1 + seed % (n - 1)
    assert same(of(streampca.neighbors(x, n_neighbors=k)), by_comparison(x, k))


def test_equal_samples_far_more_than_neighbours(monkeypatch):
    """Only the first of them can be neighbours."""
    monkeypatch.setattr("streampca.planning.neighbors.LEAST_REACH", 8)
    monkeypatch.setattr("streampca.planning.neighbors.REACH_NUMBERS", 1)
    x = np.repeat(NORMAL[:4], [200, 100, 3, 1], axis=0)[RANDOM.permutation(304)]
    x[5] += 0.0
    x[x == 0] = -0.0
    graph = streampca.neighbors(x, n_neighbors=1)
    assert same(of(graph), by_comparison(x, 1))
    assert graph.provenance["facts"]["duplicates"] == {"samples": 303, "surrounded": 303}


@pytest.mark.slow
def test_hnsw_finds_nearly_all_and_the_same_each_time():
    pytest.importorskip("faiss")
    x = np.random.default_rng(1).standard_normal((3000, 10))
    x[:50] = x[0]
    first, again = (streampca.neighbors(x, method="hnsw", ef_search=100) for _ in range(2))
    assert same(of(first), of(again))
    exact = streampca.neighbors(x)
    recall = np.mean(first.distances <= exact.distances[:, -1:])
    assert recall > 0.99
    assert first.provenance["recall"]["share"] == pytest.approx(recall, abs=0.01)
    found = first.indices == exact.indices
    assert np.array_equal(first.distances[found], exact.distances[found])
    assert "recall 0.99" in " ".join(sentences(first)) or "recall 1.0" in " ".join(sentences(first))


def test_hnsw_takes_numbers_whose_squares_overflow_float32():
    pytest.importorskip("faiss")
    x = np.random.default_rng(2).standard_normal((500, 8))
    assert np.array_equal(
        streampca.neighbors(x * 2.0**80, method="hnsw").indices, streampca.neighbors(x, method="hnsw").indices
    )


def test_distances_whose_squares_are_zero_are_refused():
    x = np.random.default_rng(0).standard_normal((50, 3))
    same = streampca.neighbors(x, n_neighbors=3)
    np.testing.assert_array_equal(streampca.neighbors(x * 2.0**-400, n_neighbors=3).indices, same.indices)
    with pytest.raises(DataError, match=r"differ by \d\.\de-16\d at most, and squares of that are too small"):
        streampca.neighbors(x * 1e-161, n_neighbors=3)


def test_without_faiss_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(RequestError, match=r'pip install "streampca\[manifold\]", or use method .exact.') as raised:
        streampca.neighbors(NORMAL, method="hnsw")
    assert "\n" not in str(raised.value)


# -- facts


def far_apart(*sizes):
    """Return clusters of some sizes, each far from the others."""
    return np.concatenate([NORMAL[:size, :4] + 100 * number for number, size in enumerate(sizes)])


@pytest.mark.parametrize("sizes", [(30, 40), (25, 60, 30), (20, 20, 20, 60)])
def test_the_neighbours_that_connect_a_graph_do_and_no_fewer(sizes):
    x = far_apart(*sizes)
    graph = streampca.neighbors(x, n_neighbors=12)
    found = graph.provenance["facts"]["components"]
    assert found["sizes"] == sorted(sizes, reverse=True)
    assert f"n_neighbors={found['connecting']} " in " ".join(sentences(graph))
    for k, is_connected in ((found["connecting"], True), (found["connecting"] - 1, False)):
        assert (streampca.neighbors(x, n_neighbors=k).provenance["facts"]["components"]["count"] == 1) is is_connected


def test_numbers_that_connect_nothing_are_said(monkeypatch):
    monkeypatch.setattr("streampca.planning.neighbors.LEAST_REACH", 30)
    monkeypatch.setattr("streampca.planning.neighbors.REACH_NUMBERS", 1)
    graph = streampca.neighbors(far_apart(80, 80), n_neighbors=3)
    assert "no number of neighbours up to 30 connects them" in " ".join(sentences(graph))


def test_the_largest_component_alone():
    x = far_apart(30, 70)[RANDOM.permutation(100)]
    kept, graph = largest_component(streampca.neighbors(x, n_neighbors=6))
    assert len(kept) == graph.n_samples == 70
    assert same(of(graph), by_comparison(x[kept], 6))
    assert len(component_labels(graph)[1]) == 1
    assert "the largest component, 70 of 100 samples" in sentences(graph)
    assert largest_component(graph)[1] is graph


def test_hubs_are_counted():
    x = np.concatenate([np.zeros((1, 40)), np.eye(40)])  # the origin is nearer to each than any other
    facts = streampca.neighbors(x, n_neighbors=1).provenance["facts"]
    assert facts["hubs"] == {"most": 40, "sample": 0, "limit": 10, "count": 1, "never": 39}


# -- refusals


@pytest.mark.parametrize(
    ("x", "options", "error", "words"),
    [
        (NORMAL[:1], {}, DataError, "has one sample, and neighbours need two"),
        (NORMAL[:10], {"n_neighbors": 10}, RequestError, r"10 is not less than the 10 samples .* give at most 9"),
        (np.ones((50, 3)), {}, DataError, "all 50 samples of numpy array are equal"),
        (np.where(NORMAL[7, 2] == NORMAL, np.nan, NORMAL), {}, DataError, "sample 7 of .* holds NaN .* in 1 of its 9"),
        (NORMAL * 1e90, {}, DataError, "whose squares overflow"),
        (NORMAL, {"n_neighbors": 0}, RequestError, "n_neighbors = 0: give a whole number of at least 1"),
        (NORMAL, {"method": "annoy"}, RequestError, "method = 'annoy': give 'auto', 'exact' or 'hnsw'"),
        (NORMAL, {"memory": "5MiB"}, BudgetError, "Set memory to at least"),
    ],
)  # fmt: skip
def test_refusals_are_one_line(x, options, error, words):
    with pytest.raises(error, match=words) as raised:
        streampca.neighbors(x, **options)
    assert "\n" not in str(raised.value)


# -- plans


def test_plans_are_exact_while_that_is_quick():
    ways = {(60_000, 50): "products", (1_000_000, 50): "hnsw", (1_000_000, 3): "tree"}
    for (n, p), way in ways.items():
        plan = plan_neighbors(in_one_file(n, (p,), "f4"), NeighborsRequest())
        assert plan.algorithm == way
        assert plan.why
    assert plan_neighbors(problem(1_000_000, (50,), "f4"), NeighborsRequest(method="exact")).algorithm == "products"
    tight = plan_neighbors(problem(1_000_000, (50,), "f4"), NeighborsRequest(memory=800 * MIB))
    assert tight.method == "exact"
    assert "hnsw does not fit" in tight.why


@given(layouts(), st.integers(1, 100), st.sampled_from(["auto", "exact", "hnsw"]))
def test_refusals_name_a_budget_that_works(layout, k, method):
    request = NeighborsRequest(k, method, memory=2 * MIB)
    if layout.n_samples <= k:
        return
    with pytest.raises(BudgetError) as raised:
        plan_neighbors(layout, request)
    enough = remedy(raised.value)
    plan = plan_neighbors(layout, replace(request, memory=enough))
    assert plan.memory_estimate.total <= enough
    assert str(plan)
    assert json.dumps(plan.to_json())


def test_images_are_said_to_be_vectors():
    plan = plan_neighbors(problem(1000, (28, 28)), NeighborsRequest(memory=GIB))
    assert "1000 samples of 784 features (values of 28 x 28)" in str(plan)
    assert "fewer components" in str(plan)


IN_PROCESS = """
import json, sys
import numpy as np
from sklearn.neighbors import NearestNeighbors
import faiss, scipy.sparse.csgraph, streampca.fitting.neighbors
from streampca.machine import PeakMeter
NearestNeighbors(algorithm="brute").fit(np.eye(300)).kneighbors(np.eye(300))
found = {}
for method, memory in zip(("exact", "hnsw"), sys.argv[1:]):
    streampca.neighbors("few.npy", method=method)
    plans, meter = [], PeakMeter()
    listen = lambda event: plans.append(getattr(event, "plan", None))
    streampca.neighbors("x.npy", method=method, memory=memory, output=method + ".zarr", listener=listen)
    estimate = next(plan for plan in plans if plan is not None).memory_estimate.total
    found[method] = found["peak"] = meter.peak(), estimate
print(json.dumps(found if found["peak"][0] is not None else {"peak": None}))
"""


@pytest.mark.slow
def test_peaks_are_below_the_estimates(here):
    """Of both methods within the least memory that they take, the graph to be connected, too."""
    pytest.importorskip("faiss")
    x = np.random.default_rng(0).standard_normal((3000, 20))
    x[1500:] += 100
    np.save("few.npy", x[::40])
    np.save("x.npy", x)
    least = []
    for method in ("exact", "hnsw"):
        with pytest.raises(BudgetError) as raised:
            streampca.neighbors("x.npy", method=method, memory=2 * MIB)
        least.append(remedy(raised.value))
    found = measured(IN_PROCESS, *least)
    for method in ("exact", "hnsw"):
        peak, estimate = found[method]
        assert peak <= estimate, method


@given(st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_pairs_of_a_forest_say_what_connects(components, seed):
    """Crossings that are thinned out to a spanning forest connect by as many neighbours as all of them."""
    random = np.random.default_rng(seed)
    labels = np.append(np.arange(components), random.integers(0, components, 40))
    numbers = random.integers(0, len(labels), (len(labels), 6))
    found = []
    for most in (0, 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(graph_components, "MOST_PAIRS", most)
            crossings = graph_components.Crossings(labels)
            for start in range(0, len(labels), 7):
                crossings.update(start, numbers[start : start + 7], np.zeros((len(numbers[start : start + 7]), 6)))
            found.append(crossings.connecting())
            assert most or len(crossings.pairs) < components
    assert found[0] == found[1]


# -- resuming


def collection_of(path):
    return prepare(streampca.open_collection(path))


@pytest.mark.slow
@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("method", ["exact", "hnsw"])
def test_a_killed_search_does_no_finished_block_again(here, monkeypatch, method):
    """Neither of the search, nor of that which connects the graph."""
    if method == "hnsw":
        pytest.importorskip("faiss")
    np.save("x.npy", far_apart(100, 120))
    cut_to(monkeypatch, 20)
    request, how = NeighborsRequest(5, method), Checkpointing("saved", 0)
    whole = making.graph_of(collection_of("x.npy"), request)
    events = []
    for moment in (4, 9, 3):
        with pytest.raises(Died):
            making.graph_of(collection_of("x.npy"), request, output="g.zarr", checkpoint=how, listener=dying(moment))
        assert not os.path.exists("g.zarr")
    made = making.graph_of(collection_of("x.npy"), request, output="g.zarr", checkpoint=how, listener=events.append)
    assert same(of(made), of(whole))
    assert made.provenance["facts"] == whole.provenance["facts"]
    assert number(BlockDone, events) < 1 + 22 - 7
    assert not os.path.exists("saved")
    assert same(of(streampca.load("g.zarr")), of(whole))


@pytest.mark.usefixtures("unsynced")
def test_other_work_is_refused_by_its_checkpoint(here, monkeypatch):
    np.save("x.npy", NORMAL)
    cut_to(monkeypatch, 20)
    how = Checkpointing("saved", 0)
    with pytest.raises(Died):
        making.graph_of(collection_of("x.npy"), NeighborsRequest(5), checkpoint=how, listener=dying(5))
    with pytest.raises(OutputError, match="unfinished run with n_neighbors 5"):
        making.graph_of(collection_of("x.npy"), NeighborsRequest(6), checkpoint=how)
    with stopping_on_signals(owns_process=True), pytest.raises(Stopped, match="is saved in saved"):  # noqa: PT012
        signal.raise_signal(signal.SIGTERM)
        making.graph_of(collection_of("x.npy"), NeighborsRequest(5), checkpoint=how)


# -- on disk, and the command


@pytest.fixture
def stored(here):
    np.save("x.npy", far_apart(100, 120))
    said = succeeded("neighbors", "x.npy", "-o", "g.zarr", "--n-neighbors", 5, "-q")
    assert "wrote g.zarr" in said
    assert not os.path.exists("g.zarr.streampca-checkpoint")
    return "g.zarr"


def test_a_stored_graph_is_read_again(stored):
    graph = streampca.load(stored)
    assert same(of(graph), by_comparison(np.load("x.npy"), 5))
    assert graph.indices.dtype == np.int32
    assert graph.to_csr().nnz == 5 * 220
    assert graph.provenance["source"] == "x.npy"
    assert repr(graph) == "NeighborGraph(220 samples, 5 neighbors)"


def test_inspect_says_it_in_words(stored):
    said = succeeded("inspect", stored, "--verify")
    assert "5 nearest neighbours of each of 220 samples of 4 features (x.npy), by method 'exact'" in said
    assert "not connected: 2 components, of 120, 100 samples; --n-neighbors 100 would" in said
    assert "every checksum agrees" in said
    about = json.loads(succeeded("inspect", stored, "--json", "--verify"))
    assert (about["n_samples"], about["n_neighbors"], about["method"]) == (220, 5, "exact")
    assert about["verified"]["arrays"] == 4
    assert "--count 3 is of a model's components, and g.zarr is a graph" in refused(
        "inspect", stored, "--count", 3, code=2
    )


def test_a_plan_without_the_work(stored):
    said = succeeded("neighbors", "x.npy", "--plan", "--memory", "1GiB")
    assert re.search(r"15 nearest of each sample: exact search by a k-d tree, as", said)
    assert re.search(r"memory +\d+.* planned, 1.0 GiB", said)
    assert typed("neighbors", "x.npy").code == 2


def test_graphs_replace_graphs_only(stored):
    assert "exists already" in refused("neighbors", "x.npy", "-o", stored)
    succeeded("neighbors", "x.npy", "-o", stored, "--overwrite", "--n-neighbors", 3, "-q")
    assert streampca.load(stored).n_neighbors == 3
    succeeded("fit", "x.npy", "-o", "m.zarr", "-k", 2, "-q")
    assert "is not a graph written by streampca" in refused("neighbors", "x.npy", "-o", "m.zarr", "--overwrite")
    assert "is not a model written by streampca" in refused("fit", "x.npy", "-o", stored, "--overwrite")
    assert "holds a graph of neighbours, not a model" in refused("transform", stored, "x.npy", "-o", "s.zarr")
    with pytest.raises(ModelError, match="holds a 'pca', not a graph of kind 'neighbors'; give a graph written by"):
        load_graph("m.zarr")
    with pytest.raises(ModelError, match="give the folder of a graph, as written by neighbors with output"):
        load_graph("none.zarr")
    assert "does not end in .zarr" in refused("neighbors", "x.npy", "-o", "g.npz", code=2)
    assert "is what the run reads" in refused("neighbors", "x.npy", "-o", "x.npy", code=2)


def test_damage_is_named(stored):
    chunk = next(path for path in (os.path.join(stored, "data", "c", "0"),) if os.path.isfile(path))
    with open(chunk, "r+b") as file:
        file.seek(200)
        file.write(b"?" * 20)
    with pytest.raises(ModelError, match=r"g.zarr is damaged in data: .* Make it again with 'streampca neighbors'"):
        streampca.load(stored)


def test_numbers_that_are_not_there_are_damage(here):
    save_graph(NeighborGraph(np.array([[1], [7]], np.int32), np.ones((2, 1))), "g.zarr")
    with pytest.raises(ModelError, match="damaged in indices: numbers of samples are out of range"):
        streampca.load("g.zarr")


def test_a_run_file_makes_scores_and_their_graph(here):
    np.save("images.npy", RANDOM.integers(0, 255, (60, 8, 7), dtype=np.uint8))
    lines = [
        "collection: {source: images.npy}",
        "model: {n_components: 5}",
        "output: {directory: out, transform: true, graph: out/graph.zarr}",
        "neighbors: {n_neighbors: 4}",
    ]
    with open("run.yaml", "w") as file:
        file.write("\n".join(lines))
    said = succeeded("run", "run.yaml", "-q")
    assert "4 nearest neighbours of each of 60 samples of 5 features (out/scores.zarr" in said
    assert same(of(streampca.load("out/graph.zarr")), of(streampca.neighbors("out/scores.zarr", n_neighbors=4)))
    again = succeeded("run", "run.yaml", "-q")
    assert "wrote out/graph.zarr" not in again
    assert "output.graph is made from the scores" in refused(
        "run", "run.yaml", "--set", "output.transform=false", code=2
    )
    assert "60 samples" in refused(
        "run", "run.yaml", "--set", "neighbors.n_neighbors=60", "--set", "output.directory=other",
        "--set", "output.graph=other.zarr", "--overwrite", code=2,
    )  # fmt: skip
    assert not os.path.exists("other/model.zarr")


def test_events_tell_the_plan(here):
    events = []
    streampca.neighbors(NORMAL, listener=events.append)
    assert [event.plan.method for event in events if isinstance(event, Planned)] == ["exact"]
    assert number(BlockDone, events) == 2
