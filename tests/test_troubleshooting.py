"""Every message of docs/troubleshooting.md is provoked here, and gone once the commands below it have been followed."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, suppress
from contextvars import copy_context
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from PIL import Image
from shell import fresh, pictures, stopped, typed
from test_docs import _BLOCK, DOCS, Block, commands_of
from test_messages import holds

import streampca
from streampca.storage.locks import output_lock

TEXT = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### `([^`]*)`\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))


def printed(*words):
    """All that a command says, on one line."""
    said = typed(*words)
    return " ".join((said.out + said.err).split())


def fit(source="scans.npy", *options):
    return printed("fit", source, "-k", 3, "-o", "model.zarr", *options)


def fitted():
    assert "wrote model.zarr" in fit()


def planted(n, height=6, width=5):
    """Samples of three directions, whose variances are 9, 4 and 2.25 of the noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, height * width))
    x[:, :3] *= [3, 2, 1.5]
    return x.reshape(n, height, width).astype(np.float32)


def folder(name, *images):
    Path(name).mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(f"{name}/{number}.png")


def no_images():
    folder("scans", *pictures(4))
    for path in Path("scans").iterdir():
        path.rename(path.with_suffix(".img"))
    return fit("scans")


def several_arrays():
    with h5py.File("scans.h5", "w") as file:
        file["raw"], file["half"] = pictures(), pictures()[::2]
    return fit("scans.h5")


def several_sizes():
    folder("scans", *pictures(4), *pictures(2, 20, 20))
    return fit("scans")


def several_types():
    folder("scans", *pictures(4), pictures()[0].astype(np.uint16))
    return fit("scans")


def one_sample():
    Image.fromarray(pictures(1, 48, 64)[0]).save("photo.png")
    return fit("photo.png")


def missing_values():
    x = planted(50)
    x[17, 0, :3] = np.nan
    np.save("scans.npy", x)
    return fit()


def mistyped():
    np.save("scans.npy", pictures())
    return fit("scan.npy")


def too_little_memory():
    np.save("scans.npy", pictures(3000, 32, 32))
    return fit("scans.npy", "--method", "covariance", "--memory", "16MiB")


def no_unit():
    np.save("scans.npy", pictures())
    return fit("scans.npy", "--memory", "512")


def no_space():
    np.save("scans.npy", pictures(5, 1000, 1000))
    fitted()
    zarr.create_array("many.zarr", shape=(2 * 10**6, 1000, 1000), chunks=(9, 1000, 1000), dtype="u1")
    return printed("reconstruct", "model.zarr", "many.zarr", "-o", "images.npy")


def exists():
    np.save("scans.npy", pictures())
    fitted()
    return fit("scans.npy", "--tol", "1e-6")


def stopped_run():
    np.save("scans.npy", pictures(3000, 32, 32))
    return " ".join(stopped("BlockDone", "fit", "scans.npy", "-k", 3, "-o", "model.zarr").err.split())


def die(event):
    if isinstance(event, streampca.events.Checkpoint):
        raise InterruptedError


def unfinished():
    np.save("scans.npy", pictures(3000, 32, 32))
    run = {"output": "model.zarr", "checkpoint": "model.zarr.streampca-checkpoint", "checkpoint_every": 0}
    with suppress(InterruptedError):
        streampca.fit("scans.npy", n_components=3, **run, listener=die)
    return printed("fit", "scans.npy", "-k", 4, "-o", "model.zarr")


def locked():
    np.save("scans.npy", pictures())
    other = copy_context()  # as of another thread, which does not know that this one holds the lock
    with ExitStack() as stack:
        other.run(stack.enter_context, output_lock("model.zarr"))
        message = fit()
        other.run(stack.close)
    return message


def other_shape():
    np.save("scans.npy", pictures())
    fitted()
    np.save("new.npy", pictures(5, 16, 14))
    return printed("transform", "model.zarr", "new.npy", "-o", "scores.npy")


def damaged():
    np.save("scans.npy", pictures())
    fitted()
    file = next(
        path for path in Path("model.zarr/components").rglob("*") if path.is_file() and path.name != "zarr.json"
    )
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(content)
    return printed("transform", "model.zarr", "scans.npy", "-o", "scores.npy")


def no_model():
    np.save("scans.npy", pictures())
    zarr.save_group("scans.zarr", images=pictures())
    return printed("transform", "scans.zarr", "scans.npy", "-o", "scores.npy")


def too_many():
    np.save("scans.npy", pictures())
    return printed("fit", "scans.npy", "-k", 100, "-o", "model.zarr")


def other_kind():
    np.save("scans.npy", pictures(50))
    return fit("scans.npy", "--landmarks", 10)


def other_samples():
    np.save("scans.npy", pictures(50))
    np.save("labels.npy", np.arange(40) % 3)
    return fit("scans.npy", "--kind", "supervised-pca", "--target", "labels.npy")


def misspelt():
    np.save("scans.npy", pictures())
    Path("run.yaml").write_text(
        "collection: {source: scans.npy}\nmodel: {n_component: 3}\noutput: {directory: runs/scans}\n"
    )
    return printed("run", "run.yaml")


def worker_memory():
    np.save("scans.npy", pictures())
    return fit("scans.npy", "--worker-memory", "1GiB")


def unreachable():
    np.save("scans.npy", pictures())
    return fit("scans.npy", "--cluster", "tcp://127.0.0.1:1", "--cluster-timeout", "1s")


def address():
    np.save("scans.npy", pictures())
    Path("run.yaml").write_text(
        "collection: {source: scans.npy}\nmodel: {n_components: 3}\nrun: {cluster: 'tcp://127.0.0.1:1'}\n"
        "output: {directory: runs/scans}\n"
    )
    return printed("run", "run.yaml")


def equal():
    with h5py.File("scans.h5", "w") as file:
        file["background"], file["raw"] = np.full((20, 8, 7), 3), pictures(20)
    return fit("scans.h5", "--key", "background")


def by_position():
    np.save("scans.npy", np.moveaxis(pictures(40), 0, -1))
    return fit()


def unconverged():
    np.save("scans.npy", np.random.default_rng(0).normal(size=(300, 20, 20)).astype(np.float32))
    return fit("scans.npy", "--method", "randomized", "--max-passes", 2)


def together():
    unconverged()
    return printed("inspect", "model.zarr")


def norths_rule():
    np.save("all_scans.npy", planted(3000))
    np.save("scans.npy", planted(3000)[:30])
    fitted()
    return printed("inspect", "model.zarr")


def constant():
    x = planted(50)
    x[:, 0] = 7
    np.save("scans.npy", x)
    return fit("scans.npy", "--standardize")


CASES = [
    mistyped, no_images, several_arrays, several_sizes, several_types, one_sample, missing_values,
    too_little_memory, no_unit, no_space,
    exists, locked, stopped_run, unfinished, other_shape, damaged, no_model, too_many, other_kind, other_samples,
    misspelt,
    worker_memory, unreachable, address,
    by_position, equal, unconverged, together, norths_rule, constant,
]  # fmt: skip
NEED_A_CLUSTER = {unreachable, address}
SLOW = {*NEED_A_CLUSTER, no_space, stopped_run, too_little_memory, unfinished, damaged}


def follow(entry, give):
    """Give the commands of an entry, write its run file, and run its Python; returns all that was printed."""
    said = ""
    for block in (Block(*match.groups()) for match in _BLOCK.finditer(entry)):
        if block.language == "console":
            for words in commands_of(block):
                done = give(*map(os.path.expandvars, words))
                assert done.code == 0, done.err
                said += done.out + done.err
        elif block.language == "yaml":
            Path("run.yaml").write_text(block.text)
        else:
            exec(block.text, {})  # noqa: S102 - our page
    return " ".join(said.split())


@pytest.mark.parametrize(
    ("provoke", "heading"),
    [
        pytest.param(case, heading, id=case.__name__, marks=[pytest.mark.slow] * (case in SLOW))
        for case, heading in zip(CASES, ENTRIES, strict=True)
    ],
)
def test_remedy(provoke, heading, here, monkeypatch, request):
    monkeypatch.setenv("COLUMNS", "200")
    parts = heading.split("...")
    message = provoke()
    assert holds(message, parts), message
    give = typed
    if provoke in NEED_A_CLUSTER:
        give = fresh  # dask reads the environment as it is imported
        distributed = pytest.importorskip("distributed")
        cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0")
        request.addfinalizer(cluster.close)
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", cluster.scheduler_address)
    after = follow(ENTRIES[heading], give)
    assert after, "no command is shown"
    assert not holds(after, parts), after
