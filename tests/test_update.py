"""Updating a model gives one fit of all samples, reads only what is new, and refuses what has changed."""

from __future__ import annotations

import copy
import gc
import re
from dataclasses import replace
from pathlib import Path

import by_options
import h5py
import numpy as np
import pytest
import zarr
from PIL import Image
from shell import pictures, refused, succeeded, typed

import streampca
from streampca import Preparation
from streampca.errors import ChangedError, Door, ModelError, OutputError, RequestError, messages_at
from streampca.events import BlockDone, Checkpoint, PassStarted, Warned
from streampca.execution.checkpoint import Checkpointing
from streampca.fitting import incremental
from streampca.fitting.seen import seen_by

RNG = np.random.default_rng(0)
PATTERNS = RNG.normal(size=(5, 64)) * 30 * 0.7 ** np.arange(5)[:, None]
X = (RNG.normal(size=(700, 5)) @ PATTERNS + RNG.normal(size=(700, 64)) * 2 + 120).clip(1, 255).astype("u1")
X = X.reshape(-1, 8, 8)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def same(one, other):
    for name in ("components", "explained_variance", "mean", "total_variance", "n_samples"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def whole(x=X, **options):
    return by_options.fit(x, n_components=4, method="covariance", **options)


def write_zarr(path, x, rows=10):
    """Write an array, or append to the one that is there."""
    try:
        array = zarr.open_array(path, mode="r+")
    except FileNotFoundError:
        array = zarr.create_array(store=path, shape=(0, 8, 8), chunks=(rows, 8, 8), dtype="u1")
    n = array.shape[0]
    array.resize((n + len(x), 8, 8))
    array[n:] = x


def made(folder):
    Path(folder).mkdir(exist_ok=True)
    return Path(folder)


def write_folder(path, x):
    path = made(path)
    n = len(list(path.iterdir()))
    for number, image in enumerate(x, n):
        Image.fromarray(image).save(path / f"image{number:05d}.png")


def write_series(path, x):
    folder = made(path.partition("/")[0])
    for part in np.split(x, 2):
        np.save(folder / f"{len(list(folder.iterdir())):05d}.npy", part)


# -- further collections


@pytest.mark.parametrize("large", [False, True])
def test_an_update_has_the_bits_of_one_fit(large, monkeypatch):
    if large:
        monkeypatch.setattr(incremental, "WAITING_BYTES", 1)
    np.save("new.npy", X[500:])
    whole(X[:500]).save("model.zarr")
    updated = streampca.update("model.zarr", "new.npy", output="both.zarr")
    same(updated, whole())
    same(streampca.load("both.zarr"), whole())
    same(streampca.update(whole(X[:500]), X[500:], n_components=4), whole())
    assert updated.provenance["passes"] == 1
    assert [entry["n_samples"] for entry in updated.provenance["seen"]] == [500, 200]
    three = streampca.update(updated, X[:50], n_components=3)
    assert (three.n_components, three.n_samples) == (3, 750)


def test_preparation_weights_and_half_life_are_those_of_one_fit():
    weights, preparation = RNG.integers(1, 4, 700).astype(float), Preparation(bin=2, scale=0.5)
    half = streampca.fit(
        X[:400], streampca.PCA(4, method="covariance"), preparation=preparation, sample_weight=weights[:400]
    )
    full = whole(preparation=preparation, sample_weight=weights)
    updated = streampca.update(half, X[400:], sample_weight=weights[400:])
    np.testing.assert_allclose(updated.explained_variance, full.explained_variance, rtol=1e-8)
    assert updated.total_weight == pytest.approx(weights.sum())
    x = X.astype(float)
    forgetting = streampca.update(whole(x[:400], half_life=100), x[400:])
    np.testing.assert_allclose(
        forgetting.explained_variance, whole(x, half_life=100).explained_variance, rtol=1e-8
    )  # the model's own, without being asked
    later = streampca.update(whole(x[:400]), x[400:], half_life=100)
    faded = np.concatenate([np.full(400, 0.5**3), 0.5 ** (np.arange(300)[::-1] / 100)])
    np.testing.assert_allclose(later.explained_variance, whole(x, sample_weight=faded).explained_variance, rtol=1e-8)


def test_a_model_without_a_statistic_is_updated_only_when_asked():
    dual = streampca.fit(X[:30], streampca.PCA(12, method="dual"))
    with pytest.raises(ModelError, match=r"fitted by method 'dual'"):
        streampca.update(dual, X[30:90])
    events = []
    near = streampca.update(dual, X[30:90], approximate=True, listener=events.append)
    exact = np.linalg.eigvalsh(np.cov(X[:90].reshape(90, -1).T.astype(float)))[::-1][:12]
    assert (np.abs(near.explained_variance - exact) <= near.residual_bound * near.explained_variance).all()
    assert near.residual_bound[0] < 0.2
    assert any("sketch" in event.message for event in events if isinstance(event, Warned))


# -- sources that grow


def write_hdf5(path, x):
    gc.collect()  # HDF5 writes to no file that the same process has open for reading
    with h5py.File(path, "a", libver="latest") as file:
        chunked = {"maxshape": (None, 8, 8), "chunks": (50, 8, 8)}
        data = file["x"] if "x" in file else file.create_dataset("x", (0, 8, 8), "u1", **chunked)
        n = len(data)
        data.resize(n + len(x), axis=0)
        data[n:] = x


GROWING = {
    "hdf5": ("x.h5", write_hdf5, 500),
    "hdf5, a chunk not full": ("x.h5", write_hdf5, 497),
    "zarr": ("x.zarr", write_zarr, 500),
    "zarr, a chunk not full": ("x.zarr", write_zarr, 497),
    "folder": ("images", write_folder, 500),
    "series": ("series/*.npy", write_series, 500),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", GROWING)
def test_a_source_that_grew_gives_its_new_samples_unless_old_ones_changed(kind):
    path, write, n = GROWING[kind]
    write(path, X[:n])
    succeeded("fit", path, "-k", 4, "--method", "covariance", "-o", "model.zarr", "-q")
    write(path, X[n:600])
    read = []
    updated = streampca.update("model.zarr", path, output="model.zarr", listener=read.append)
    assert sum(event.samples for event in read if isinstance(event, BlockDone)) in (0, 600 - n)
    same(updated, whole(X[:600]))
    assert updated.provenance["source"].partition(", ")[0] == path
    assert updated.provenance["opened"]["source"] == path  # as of one fit: its report reads all samples
    assert "has no samples that model.zarr was not fitted to" in typed("fit", path, "--update", "model.zarr").err
    write(path, X[600:])
    if kind == "folder":
        Image.fromarray(X[0] // 2).save("images/image00007.png")
    elif kind == "series":
        np.save("series/00000.npy", X[: n // 2] // 2)
    elif kind.startswith("hdf5"):
        with h5py.File(path, "r+") as file:
            file["x"][7] = X[0]
    else:
        zarr.open_array(path)[7] = X[0]
    line = refused("fit", path, "--update", "model.zarr", "-q")
    names = {"folder": "image00007.png", "series": "00000.npy", "zarr": "c/0/0/0", "hdf5": "(rows 0 to 49)"}
    changed = names[kind.partition(",")[0]]
    assert re.search(
        rf"{re.escape(changed)} has changed since model.zarr was fitted; fit a new model to all samples\.$", line
    )
    same(streampca.load("model.zarr"), whole(X[:600]))


def test_fewer_samples_and_sources_that_cannot_be_compared():
    np.save("x.npy", X[:500])
    model = streampca.fit("x.npy", streampca.PCA(4, method="covariance"), output="model.zarr")
    np.save("x.npy", X[:300])
    with pytest.raises(ChangedError, match=r"x.npy has 300 samples now, and .* was fitted to 500; fit a new model"):
        streampca.update("model.zarr", "x.npy")
    np.save("x.npy", X)
    with pytest.raises(
        RequestError, match=r"does not show whether .* give the new ones alone: samples=slice\(500, 700\)"
    ) as error:
        streampca.update("model.zarr", "x.npy")
    with messages_at(Door.COMMAND_LINE):
        remedy = re.search(r"--samples [\d:]+", str(error.value))[0].split()
    succeeded("fit", "x.npy", "--update", "model.zarr", *remedy, "-q")
    same(streampca.load("model.zarr"), whole())
    same(streampca.update(model, "x.npy", samples=slice(500, 700)), whole())


def test_samples_that_were_left_out_are_not_looked_for():
    x = X.astype("f4")
    x[7, 3, 3] = np.nan
    np.save("x.npy", x[:500])
    streampca.fit("x.npy", streampca.PCA(4, method="covariance", missing="drop-samples"), output="model.zarr")
    np.save("x.npy", x)
    with pytest.raises(RequestError, match=r"without samples that have missing values.* samples=slice\(START, None\)"):
        streampca.update("model.zarr", "x.npy")
    assert streampca.update("model.zarr", "x.npy", samples=slice(500, None)).n_samples == 699


def test_an_update_that_was_stopped_resumes(monkeypatch):
    monkeypatch.setattr(incremental, "WAITING_BYTES", 1)
    monkeypatch.setattr("streampca.planning.covariance.MOST_BLOCK", 40 * 64)
    np.save("new.npy", X[100:])
    whole(X[:100]).save("model.zarr")
    done = []

    def stop(event):
        done.append(event)
        if sum(isinstance(each, Checkpoint) for each in done) == 5:
            raise KeyboardInterrupt

    how = {"output": "model.zarr", "checkpoint": Checkpointing("saved", every=0)}
    with pytest.raises(KeyboardInterrupt):
        streampca.update("model.zarr", "new.npy", listener=stop, **how)
    same(streampca.load("model.zarr"), whole(X[:100]))
    before = sum(event.samples for event in done if isinstance(event, BlockDone))
    with pytest.raises(OutputError, match="saved holds an unfinished run with source"):
        streampca.update("model.zarr", X[:50], **how)
    done = []
    same(streampca.update("model.zarr", "new.npy", listener=done.append, **how), whole())
    assert sum(event.samples for event in done if isinstance(event, BlockDone)) < 600
    assert before > 0
    assert any(isinstance(event, PassStarted) for event in done)


# -- the command line


def test_run_files_and_refusals(tmp_path):
    np.save("x.npy", X[:500])
    np.save("new.npy", X[500:])
    succeeded("fit", "x.npy", "-k", 4, "--method", "covariance", "-o", "model.zarr", "-q")
    line = refused("fit", "new.npy", "--update", "model.zarr", "--bin", 2, code=2)
    assert "prepare.bin is given, and model.zarr is updated as it was fitted (update.model); leave it out" in line
    line = refused("fit", "new.npy", "--update", "model.zarr", "--method", "covariance", code=2)
    assert "model.method is given, and model.zarr is updated as it was fitted" in line
    line = refused("fit", "new.npy", "--update", "model.zarr", "--landmarks", 5, code=2)
    assert "--landmarks is no option of kind pca" in line
    assert "does not exist" in refused("fit", "new.npy", "--update", "none.zarr")
    assert "--output" in refused("fit", "new.npy", code=2)
    config = succeeded("fit", "new.npy", "--update", "model.zarr", "-o", "b.zarr", "--print-config")
    (tmp_path / "run.yaml").write_text(config)
    succeeded("run", "run.yaml", "-q")
    same(streampca.load("b.zarr"), whole())
    same(streampca.load("model.zarr"), whole(X[:500]))
    told = succeeded("fit", "new.npy", "--update", "model.zarr", "-k", 3)
    assert "wrote model.zarr" in told
    assert streampca.load("model.zarr").n_components == 3


DAMAGE = {
    "plan": lambda about: about.update(plan=[]),
    "request": lambda about: about["plan"].update(request=3),
    "kind": lambda about: about["plan"]["request"].update(kind="none"),
    "problem": lambda about: about["plan"].pop("problem"),
    "n_samples": lambda about: about["plan"]["problem"].update(n_samples="many"),
    "sample_shape": lambda about: about["plan"]["problem"].update(sample_shape=[3, -1]),
    "precision": lambda about: about["plan"].update(precision="triple"),
    "seen": lambda about: about.update(seen=7),
    "entry": lambda about: about.update(seen=[{"place": "x.npy"}]),
    "states": lambda about: about["seen"][0].update(states=None),
    "dates": lambda about: about["seen"][0].update(dates="1990"),
    "options": lambda about: about["seen"][0].update(options={"options": 3}),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Model of a file, and the path of another."""
    folder = tmp_path_factory.mktemp("recorded")
    np.save(folder / "x.npy", pictures(40))
    streampca.fit(pictures(30, seed=1), streampca.PCA(2, method="covariance"), output=folder / "other.zarr")
    return streampca.fit(folder / "x.npy", streampca.PCA(2, method="covariance")), folder / "other.zarr"


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_record_of_the_fit_ends_in_one_line(recorded, damage):
    """Whoever reads it: an update, a merge, a fit to the same output."""
    model, other = recorded
    about = {**model.provenance, "plan": copy.deepcopy(model.provenance["plan"])}
    about["seen"] = [dict(vars(source)) for source in seen_by(about, "m.zarr")]
    damage(about)
    replace(model, provenance=about).save("m.zarr")
    for call in (lambda: streampca.update("m.zarr", pictures(9)), lambda: streampca.merge(["m.zarr", other])):
        with pytest.raises(ModelError, match=r"^m\.zarr (is|holds a) damaged .*it again\.$"):
            call()
