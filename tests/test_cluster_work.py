"""The table of docs/clusters.md: which passes of each piece of work workers make, and which the starting process."""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import streampca as sp
from streampca.events import PassStarted
from streampca.fitting import neighbors as making
from streampca.planning.neighbors import plan_neighbors
from streampca.preprocessing import Preparation
from streampca.readers import open_collection

distributed = pytest.importorskip("distributed")
from clusters import processes_here  # noqa: E402 - needs distributed
from faulty import Killing  # noqa: E402 - the same

from streampca.execution.cluster import DaskExecutor  # noqa: E402 - the same

pytestmark = pytest.mark.slow

surveying = importlib.import_module("streampca.plot.report.survey")  # the package has a function of this name

TABLE = "| work | by workers | by the process that was started |"
TEXT = Path(__file__).parents[1].joinpath("docs", "clusters.md").read_text()


def fits(kind, source="x.npy", **options):
    return lambda model, how: sp.fit(os.path.abspath(source), kind, **options, **how)


def prepared(**steps):
    return {"preparation": Preparation(**steps)}


TARGET = {"target": "y.npy"}
# Work as the first column of the table names it, and how it is done here.
WORK = {
    "`fit`, method covariance": fits(sp.PCA(3, method="covariance")),
    "`fit`, method dual": fits(sp.PCA(3, method="dual"), "wide.npy"),
    "`fit`, method randomized": fits(sp.PCA(3, method="randomized"), "wide.npy"),
    "`fit` with missing values estimated (em)": fits(sp.PCA(3, missing="em")),
    "`fit` without incomplete samples": fits(sp.PCA(3, missing="drop-samples")),
    "`fit` with a mask of valid pixels": fits(sp.PCA(3), **prepared(mask="valid")),
    "`fit` with steps that learn": fits(sp.PCA(3), **prepared(standardize=True)),
    "`fit`, kernel-pca": fits(sp.KernelPCA(3, landmarks=50)),
    "`fit`, kernel-pca of all samples": fits(sp.KernelPCA(3, method="kernel-matrix")),
    "`fit`, classical-mds": fits(sp.ClassicalMDS(3), "wide.npy"),
    "`fit`, supervised-pca": fits(sp.SupervisedPCA(2), **TARGET),
    "`fit`, fisher-discriminant": fits(sp.FisherDiscriminant(2), **TARGET),
    "`fit`, sliced-inverse-regression": fits(sp.SlicedInverseRegression(2), **TARGET),
    "`fit`, supervised-principal-components": fits(sp.SupervisedPrincipalComponents(2), **TARGET),
    "`fit`, isomap": fits(sp.Isomap(2)),
    "`fit`, other embeddings": fits(sp.LocallyLinearEmbedding(2, pca_components=5)),
    "`transform`": lambda model, how: model.write_scores(os.path.abspath("x.npy"), "s.zarr", **how),
    "`transform` to csv": lambda model, how: model.write_scores(os.path.abspath("x.npy"), "s.csv", **how),
    "`reconstruct`": lambda model, how: model.write_reconstruction(os.path.abspath("x.npy"), "i.zarr", **how),
    "`copy`": lambda model, how: sp.copy(os.path.abspath("x.npy"), output="c.zarr", **how),
    "`neighbors`": lambda model, how: sp.neighbors(os.path.abspath("x.npy"), output="g.zarr", **how),
    "`hsic`": lambda model, how: sp.hsic(os.path.abspath("x.npy"), target="y.npy", permutations=50, **how),
    "`report`": lambda model, how: sp.write_report(model, "r.html", collection=os.path.abspath("x.npy"), **how),
}


def rows():
    """Rows of the table: work, and labels of passes, of which numbers are written as k."""
    lines = TEXT.split(TABLE)[1].split("\n\n")[0].strip().splitlines()[1:]
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {work: tuple(set(re.findall("`([^`]+)`", cell)) for cell in where) for work, *where in cells}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    with processes_here(folder, 2) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2)
        yield client


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    images = random.normal(size=(240, 4, 4)) * np.geomspace(3, 0.1, 4) + 10
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        np.save("x.npy", images.astype(np.float32))
        np.save("wide.npy", random.normal(size=(40, 3000)).astype(np.float32))
        np.save("y.npy", np.arange(240) % 3)
        yield sp.fit("x.npy", sp.PCA(3))


def test_the_table_has_all_work():
    assert rows().keys() == WORK.keys()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.filterwarnings("ignore")  # of data that suit one kind and not another
@pytest.mark.parametrize("work", WORK)
def test_passes_are_made_where_the_table_says(client, model, work, monkeypatch):
    started, shared, fold = [], set(), DaskExecutor.fold

    def noted(executor, *arguments, **options):
        shared.add(started[-1])
        return fold(executor, *arguments, **options)

    def listen(event):
        if isinstance(event, PassStarted):
            started.append(re.sub(r"\d+", "k", event.label))

    monkeypatch.setattr(DaskExecutor, "fold", noted)
    WORK[work](model, {"cluster": client, "memory": "256 MiB", "listener": listen})
    assert (shared, set(started) - shared) == rows()[work]


@pytest.mark.parametrize("method", ["exact", "hnsw"])
@pytest.mark.parametrize("features", [4, 16], ids=["tree", "products"])
def test_workers_find_the_neighbours_that_one_process_finds(client, model, monkeypatch, method, features):
    """And how many would connect two parts; samples that are equal are searched once."""
    if method == "hnsw":
        pytest.importorskip("faiss")
    monkeypatch.setattr(making, "make_neighbors_plan", lambda *given: replace(plan_neighbors(*given), block_rows=30))
    rows = np.load("x.npy").reshape(240, -1)[:, :features]
    rows[-60:] += 1000
    rows[7] = rows[3]
    here = sp.neighbors(rows, n_neighbors=5, method=method)
    there = sp.neighbors(rows, n_neighbors=5, method=method, cluster=client, memory="256 MiB")
    np.testing.assert_array_equal(there.indices, here.indices, strict=True)
    np.testing.assert_array_equal(there.distances, here.distances)
    assert there.provenance["facts"] == here.provenance["facts"]
    assert there.provenance["facts"]["components"]["count"] > 1


def test_workers_measure_geodesics_as_one_process_does(client, model):
    here, there = (sp.fit(np.load("x.npy"), sp.Isomap(2), memory="256 MiB", cluster=each) for each in (None, client))
    np.testing.assert_array_equal(there.embedding, here.embedding)


def test_a_survey_has_the_same_bits_whoever_dies(client, model, tmp_path, monkeypatch):
    share = surveying.share_of
    monkeypatch.setattr(surveying, "share_of", lambda *given: replace(share(*given), block_rows=20))
    raw, note = open_collection(os.path.abspath("x.npy")), tmp_path / "killed"
    here = surveying.survey(model, raw, memory="256 MiB")
    dying = Killing(raw, 130, str(note))
    there = surveying.survey(model, dying, memory="256 MiB", executor=DaskExecutor(client))
    assert note.exists(), "a worker was killed"
    for name in ("scores", "t2", "spe", "extremes", "pinned"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name), err_msg=name)
    assert [each.position for each in there.unusual] == [each.position for each in here.unusual]
    assert there.thumbnails.image == here.thumbnails.image
