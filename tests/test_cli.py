"""Every command, as people type it."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from PIL import Image
from shell import stopped, succeeded, typed

import streampca
from streampca import machine
from streampca.cli.commands import cli
from streampca.cli.config import load_run
from streampca.cli.help import HEADINGS
from streampca.cli.main import SUMMARIES
from streampca.kinds.description import fields_of
from streampca.kinds.registry import KINDS, kind_class
from streampca.readers.stored.flat import FlatArray
from streampca.units import facts_as_text

COMMANDS = list(cli.commands)


def digits(n=120, height=8, width=7, seed=0):
    """Images of whole numbers with a few strong directions, (n, height, width)."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, 5)) * [40, 25, 15, 10, 6]
    directions = np.linalg.qr(rng.normal(size=(height * width, 5)))[0].T
    images = 128 + hidden @ directions + rng.normal(size=(n, height * width))
    return images.round().clip(0, 255).astype(np.uint8).reshape(n, height, width)


def answer(images):
    """Variances and components (rows) of images, by a singular value decomposition."""
    rows = np.reshape(images, (len(images), -1)).astype(np.float64)
    _, singular, rows = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    return singular**2 / (len(images) - 1), rows


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "images.npy"
    np.save(path, digits())
    return path


@pytest.fixture(scope="module")
def model(source):
    """A fitted model with three components."""
    path = source.with_name("model.zarr")
    succeeded("fit", source, "-k", 3, "-o", path, "-q")
    return path


# -- looking


def test_help_of_every_command():
    whole = succeeded("--help")
    assert [name for name in re.findall(r"^  (\w+)  +", whole, re.MULTILINE) if name in cli.commands] == [
        "demo", "info", "plan", "fit", "merge", "transform", "reconstruct", "neighbors", "inspect", "report", "hsic",
        "copy", "export", "run",
    ]  # fmt: skip
    assert "..." not in whole.partition("Commands:")[2], "a summary was cut"
    assert succeeded() == whole, "no command at all asks for help"


def test_summaries_are_those_of_the_commands():
    """They are listed without loading the commands."""
    assert {name: command.help.partition("\n")[0] for name, command in cli.commands.items()} == SUMMARIES


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_one_command(name):
    result = CliRunner().invoke(cli, [name, "-h"], terminal_width=100)
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 100 for line in result.output.splitlines())
    for option in cli.commands[name].params:
        if option.param_type_name == "option":
            assert option.help, f"{name} {option.opts}"
            assert option.help.endswith((".", "]")), option.help


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_the_help_are_commands(name):
    """Two of each, which parse."""
    command = cli.commands[name]
    assert len(command.examples) == 2
    for example in command.examples:
        words = shlex.split(example.partition(" > ")[0])
        assert words[:2] == ["streampca", name]
        command.make_context(name, words[2:], **cli.context_settings)  # the first names the help options for good


def test_options_stand_under_headings():
    said = succeeded("fit", "--help")
    places = [said.index(f"\n{heading}:\n") for heading in (*HEADINGS, "Examples")]
    assert places == sorted(places)
    for option, heading in (
        ("--labels", "Input"),
        ("--resize", "Preparation"),
        ("--method", "Model"),
        ("--overwrite", "Output"),
        ("--follow", "Updating and following"),
        ("--memory", "Running"),
    ):
        assert said.index(f"\n{heading}:\n") == max(place for place in places if place < said.index(f"  {option} "))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fit", "plan"])
def test_help_of_a_kind_is_a_page(name, kind):
    """Its own options, output and running first, and those of no other kind."""
    result = CliRunner().invoke(cli, [name, "--kind", kind, "--help"], terminal_width=80)
    lines = result.output.splitlines()
    own = kind in ("kernel-pca", "supervised-pca", "classical-mds")  # which have a dozen options more
    assert lines.index("Input:") <= (70 if own else 60)
    assert len(lines) <= 110
    assert all(len(line) <= 80 for line in lines)
    shown = {word for line in lines if line.startswith("  -") for word in re.findall(r"--[a-z0-9-]+", line[:28])}
    fields = {field for other in KINDS for field in fields_of(kind_class(other))}
    listed = {field for field in fields if f"--{field.replace('_', '-')}" in shown}
    cls = kind_class(kind)
    assert listed == set(fields_of(cls))
    # Options of input and running that only some kinds have a use for.
    assert ({"--part"} <= shown) == cls.grows
    assert ({"--update", "--approximate", "--follow", "--until"} <= shown) == (cls.grows and name == "fit")
    assert ({"--sample-weight", "--scratch"} <= shown) == (not cls.uses_graph)


def test_options_of_other_kinds_are_refused_by_name(source, tmp_path):
    said = typed("fit", source, "--landmarks", 5, "-o", tmp_path / "m.zarr")
    assert said.code == 2
    assert "--landmarks is no option of kind pca, but of kernel-pca, classical-mds, supervised-pca, isomap," in said.err
    assert "give --kind kernel-pca, or leave it out." in said.err
    said = typed("fit", source, "--kind", "spectral-clustering", "-k", 5, "-o", tmp_path / "m.zarr")
    assert "-k is no option of kind spectral-clustering, but of pca, " in said.err
    assert "--target is no option of kind pca, but of" in typed("plan", source, "--target", "t.npy").err
    assert "No such option" in typed("fit", source, "--nothing", 5, "-o", tmp_path / "m.zarr").err


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"], ["fit", "--kind", "isomap", "--help"]], ids=" ".join)
def test_help_costs_little(words):
    """Processor time, the least of some tries: others may use the machine meanwhile."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "streampca", *words], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.25  # 0.07 and 0.13 on a machine that does nothing else


def test_programs_that_call_commands_keep_their_signals_and_memory(source, model, tmp_path, monkeypatch):
    """The process is a command's own in `main` alone; signals could not be handled in this thread."""
    monkeypatch.setattr(machine, "share_pools", lambda: pytest.fail("the pools are the caller's"))
    commands = [["info", source], ["transform", model, source, "-o", tmp_path / "scores.npy", "-q"]]
    with ThreadPoolExecutor(1) as thread:
        for words in commands:
            result = thread.submit(CliRunner().invoke, cli, [str(word) for word in words]).result()
            assert result.exit_code == 0, result.exception


def test_version():
    assert succeeded("--version") == f"streampca, version {streampca.__version__}\n"


def test_info(source):
    facts = json.loads(succeeded("info", source, "--json"))
    assert facts == {
        "source": str(source),
        "samples": 120,
        "sample_shape": [8, 7],
        "mixed": False,
        "axes": None,
        "features": 56,
        "dtype": "|u1",
        "bytes": 120 * 56,
        "chunks": {"samples": 1, "features": 56},
        "first": f"sample 0 of {source}",
        "last": f"sample 119 of {source}",
        "skipped": [],
        "assumed": facts["assumed"],
    }
    assert facts["assumed"].startswith("samples are taken along axis 0, by its position alone; --sample-axes")
    said = succeeded("info", source)
    assert "120 of 8 x 7" in said
    assert "uint8" in said


def test_info_takes_many_files_and_odd_names(tmp_path):
    names = [tmp_path / "s2.png", tmp_path / "s10.png", tmp_path / "s[b]:smile:.png"]
    for name, image in zip(names, digits(3), strict=True):
        Image.fromarray(image).save(name)
    facts = json.loads(succeeded("info", tmp_path, "--json"))
    assert (facts["first"], facts["axes"]) == (str(names[0]), ["y", "x"])
    assert str(names[2]) in succeeded("info", *names)


def test_plan(source):
    told = json.loads(succeeded("plan", source, "-k", 3, "--memory", "64MiB", "--json"))
    names = {"method", "why", "rejected", "passes", "bytes_read", "memory_estimate", "memory_needed", "memory"}
    assert {*names, "precision"} <= set(told)
    assert (told["method"], told["passes"], told["memory"]) == ("covariance", 1, 64 * 2**20)
    assert told["memory_needed"] == max(sum(items.values()) for items in told["memory_estimate"].values())
    said = succeeded("plan", source, "-k", 3, "--memory", "64MiB")
    lines = streampca.plan(str(source), n_components=3, memory="64MiB").lines()
    expected = facts_as_text((heading, text.replace(" (sample_axes)", "")) for heading, text in lines) + "\n"
    seconds = re.compile(r"about [\d.]+ s")  # the command measures rates, the function takes those of a table
    assert seconds.sub("", said) == seconds.sub("", expected)
    assert "not taken   dual: not considered, as another exact method" in said


def test_plan_of_data_that_are_not_here(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((50, 12, 10), np.uint8))
    options = ("-k", 2, "--bin", 2, "--crop", "0:8,0:10", "--sample-axes", "1,2", "--select", "0=0:40", "--json")
    here, declared = (
        json.loads(succeeded("plan", *what, *options)) for what in ([tmp_path / "x.npy"], ["--shape", "50x12x10"])
    )
    assert here["problem"]["sample_shape"] == declared["problem"]["sample_shape"] == [4, 5]
    assert here["problem"]["n_samples"] == declared["problem"]["n_samples"] == 40
    huge = succeeded("plan", "--shape", "100000000x64x64", "--dtype", "float32", "-k", 50, "--memory", "2GiB")
    assert "100000000 samples of 64 x 64" in huge


def test_inspect(model):
    told = json.loads(succeeded("inspect", model, "--json"))
    assert set(told) == {
        "kind", "n_components", "n_samples", "n_features", "sample_shape", "sample_dims", "total_variance",
        "explained_variance", "explained_variance_ratio", "singular_values", "residual_bound", "angle_bound",
        "error_bound", "trust", "preparation", "provenance",
    }  # fmt: skip
    variances, _ = answer(digits())
    np.testing.assert_allclose(told["explained_variance"], variances[:3], rtol=1e-6)
    np.testing.assert_allclose(told["total_variance"], variances.sum(), rtol=1e-9)
    said = succeeded("inspect", model, "--count", 2)
    assert "PCAModel(3 components of 8 x 7 samples" in said
    assert "... and 1 more" in said
    assert f"by streampca {streampca.__version__}" in said


# -- fit, transform, reconstruct


def test_round_trip_equals_numpy(tmp_path, source):
    model, scores, images = tmp_path / "deep" / "model.zarr", tmp_path / "scores.zarr", tmp_path / "images.npy"
    said = succeeded("fit", source, "-k", 3, "-o", model)
    assert f"wrote {model}\n" in said
    following = said.splitlines()[-1].removeprefix("next: streampca ").split()
    assert following[:3] == ["transform", str(model), str(source)]
    succeeded(*following[:4], scores)
    succeeded("reconstruct", model, scores, "-o", images)

    x = digits().reshape(120, -1).astype(np.float64)
    mean, (_, rows) = x.mean(axis=0), answer(digits())
    rows = rows[:3] * np.sign(rows[np.arange(3), np.abs(rows[:3]).argmax(axis=1)])[:, None]
    expected = (x - mean) @ rows.T
    np.testing.assert_allclose(zarr.open_group(scores)["scores"][...], expected, atol=1e-3)
    np.testing.assert_allclose(np.load(images).reshape(120, -1), mean + expected @ rows, atol=1e-3)

    again = tmp_path / "again.zarr"
    succeeded("reconstruct", model, source, "-o", again, "--n-components", 3)
    np.testing.assert_allclose(zarr.open_group(again)["images"][...], np.load(images), atol=1e-3)


@pytest.mark.parametrize("suffix", ["zarr", "npy", "csv"])
def test_scores_in_every_format(tmp_path, source, model, suffix):
    path = tmp_path / f"scores.{suffix}"
    assert succeeded("transform", model, source, "-o", path, "--whiten", "-q") == f"wrote {path}\n"
    if suffix == "csv":
        with open(path, newline="") as file:
            head, *lines = csv.reader(file)
        assert head == ["sample", "component_1", "component_2", "component_3"]
        scores = np.array([line[1:] for line in lines], dtype=float)
    else:
        scores = np.load(path) if suffix == "npy" else zarr.open_group(path)["scores"][...]
    np.testing.assert_allclose(scores.std(axis=0, ddof=1), 1, rtol=1e-4)
    assert sorted(os.listdir(tmp_path)) == [path.name]


def test_names_that_are_no_text_travel(tmp_path, model):
    os.mkdir(tmp_path / "images")
    for number, image in enumerate(digits(4)):
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
    try:
        os.rename(os.fsencode(tmp_path / "images" / "1.png"), os.fsencode(tmp_path / "images") + b"/1\xff.png")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    succeeded("transform", model, tmp_path / "images", "-o", tmp_path / "s.zarr", "-q")
    succeeded("transform", model, tmp_path / "images", "-o", tmp_path / "s.csv", "-q")
    names = ["0.png", "1\\udcff.png", "2.png", "3.png"]
    assert zarr.open_group(tmp_path / "s.zarr")["sample"][...].tolist() == names
    with open(tmp_path / "s.csv", encoding="utf-8", newline="") as file:
        assert [line[0] for line in csv.reader(file)][1:] == names


@pytest.mark.parametrize(("asked", "share"), [
    (["-k", "all"], 1), (["-k", "0.999999999999"], 1), (["-k", "5e-1"], 0.5), (["-k", "0.7"], 0.7), ([], 0.95),
])  # fmt: skip
def test_how_many_components(tmp_path, source, asked, share):
    variances, _ = answer(digits())
    count = 56 if share == 1 else 1 + np.searchsorted(np.cumsum(variances) / variances.sum(), share)
    succeeded("fit", source, *asked, "-o", tmp_path / "m.zarr", "-q")
    assert streampca.load(tmp_path / "m.zarr").n_components == count


MASK = np.arange(72).reshape(9, 8) % 3 > 0


def hand_prepared():
    """Options, the raw array they are for, and the images they should make of it."""
    images = digits(60, 9, 8)
    colours = np.random.default_rng(1).integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
    binned = images[:, :8].reshape(60, 4, 2, 4, 2).mean(axis=(2, 4))
    return {
        "sample-axes": (["--sample-axes", "0,1"], images.transpose(1, 2, 0), images),
        "select entry": (["--sample-axes", "1,2", "--select", "3=1"], colours, colours[..., 1]),
        "grey": (["--grey"], colours, colours @ np.float32([0.299, 0.587, 0.114])),
        "crop and bin": (["--crop", "0:8,0:8", "--bin", "2"], images, binned),
        "select range and mask": (["--select", "0=10:30", "--mask", "mask.npy"], images, images[10:30, MASK]),
    }


@pytest.mark.parametrize(("options", "raw", "images"), hand_prepared().values(), ids=hand_prepared())
def test_preparation_and_axes_equal_numpy(here, options, raw, images):
    np.save("raw.npy", raw)
    np.save("mask.npy", MASK)
    succeeded("fit", "raw.npy", "-k", 3, *options, "--precision", "double", "-o", "m.zarr", "-q")
    model, (variances, _) = streampca.load("m.zarr"), answer(images)
    np.testing.assert_allclose(model.total_variance, variances.sum(), rtol=1e-6)
    np.testing.assert_allclose(model.explained_variance, variances[:3], rtol=1e-6)
    assert model.n_samples == len(images)
    assert model.n_features == images[0].size


# -- runs


def same_model(left, right):
    left, right = streampca.load(left), streampca.load(right)
    for name in ("components", "mean", "explained_variance", "residual_bound"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


@pytest.mark.parametrize("options", [
    ["-k", "all", "--memory", "64MiB", "--random-state", "3", "--precision", "double", "--method", "covariance"],
    ["-k", "0.5", "--tol", "1e-6", "--max-passes", "4", "--select", "0=0:50", "--crop", "0:8,0:6", "--bin", "2"],
])  # fmt: skip
def test_printed_config_of_fit_does_the_same(tmp_path, source, options):
    direct, by_file = tmp_path / "direct.zarr", tmp_path / "file.zarr"
    succeeded("fit", source, *options, "-o", direct, "-q")
    (tmp_path / "run.yaml").write_text(succeeded("fit", source, *options, "-o", by_file, "--print-config"))
    assert not by_file.exists(), "printing does nothing else"
    succeeded("run", tmp_path / "run.yaml", "-q")
    same_model(direct, by_file)
    printed = succeeded("run", tmp_path / "run.yaml", "--print-config")
    assert printed == (tmp_path / "run.yaml").read_text()


def test_printed_config_of_transform_and_reconstruct_does_the_same(tmp_path, source, model):
    for command, options in (
        ("transform", ["--whiten", "--memory", "64MiB"]),
        ("reconstruct", ["--n-components", "2"]),
    ):
        direct, by_file = tmp_path / f"{command}.npy", tmp_path / f"{command}_file.npy"
        succeeded(command, model, source, *options, "-o", direct, "-q")
        text = succeeded(command, model, source, *options, "-o", by_file, "--print-config")
        (tmp_path / "run.yaml").write_text(text)
        assert load_run(str(tmp_path / "run.yaml")).apply == str(model)
        succeeded("run", tmp_path / "run.yaml", "-q")
        np.testing.assert_array_equal(np.load(direct), np.load(by_file))


def written_to(folder, source):
    """A run file that writes model and scores to `folder`/out."""
    text = f"collection: {{source: {source}}}\nmodel: {{n_components: 3}}\n"
    (folder / "run.yaml").write_text(f"{text}output: {{directory: {folder / 'out'}, transform: true}}\n")
    return folder / "run.yaml"


@pytest.fixture
def run_file(tmp_path, source):
    return written_to(tmp_path, source)


@pytest.fixture(scope="module")
def done(tmp_path_factory, source):
    """A run file whose run is complete."""
    path = written_to(tmp_path_factory.mktemp("done"), source)
    succeeded("run", path, "-q")
    return path


WITH_FIGURES = ("--set", "output.report=true")
OF_MODEL = {"scree.pdf", "components.pdf", "walks.pdf", "compression.pdf"}
OF_SAMPLES = {"reconstructions.pdf", "scores.pdf", "series.pdf", "quantiles.pdf", "outliers.pdf", "unusual.pdf"}
FIGURES = OF_MODEL | OF_SAMPLES


def test_run_directory(tmp_path, run_file, source, undrawn):
    """The same run reuses its outputs and makes missing ones."""
    said = succeeded("run", run_file, *WITH_FIGURES)
    out = tmp_path / "out"
    written = {"model.zarr", "scores.zarr", "report.html", "figures", "run.json"}
    assert set(os.listdir(out)) == {*written, "config.yaml", "run.log"}
    assert set(os.listdir(out / "figures")) == FIGURES
    assert load_run(str(out / "config.yaml")) == load_run(str(run_file), WITH_FIGURES[1:])
    about = json.loads((out / "run.json").read_text())
    assert about["source"] == str(source)
    assert {"streampca", "created", "plan", "versions", "peak_bytes", "fingerprint"} <= set(about)
    log = (out / "run.log").read_text()
    assert all(
        word in log for word in ("plan: method covariance", "scatter matrix: started", "fit finished", "finished\n")
    )
    times = [datetime.fromisoformat(line.split()[0]) for line in log.splitlines()]
    assert all(time.tzinfo is not None for time in times)
    assert times == sorted(times)
    for name in written - {"figures"}:
        assert f"wrote {out / name}\n" in said

    created = streampca.load(out / "model.zarr").provenance["created"]
    kept = {name: os.stat(out / name).st_mtime_ns for name in ("model.zarr", "scores.zarr")}
    (out / "figures" / "scree.pdf").unlink()
    again = typed("run", run_file, *WITH_FIGURES)
    assert again.code == 0, again.err
    assert f"kept {out / 'model.zarr'}\n" in again.out
    assert set(os.listdir(out / "figures")) == FIGURES
    assert streampca.load(out / "model.zarr").provenance["created"] == created
    assert kept == {name: os.stat(out / name).st_mtime_ns for name in kept}


def test_a_dry_run_reads_and_writes_nothing(tmp_path, run_file, monkeypatch):
    monkeypatch.setattr(FlatArray, "read_into", None)
    said = succeeded("run", run_file, *WITH_FIGURES, "--dry-run")
    out = tmp_path / "out"
    assert re.search(r"^method +covariance", said, re.MULTILINE)
    assert all(str(out / name) in said for name in ("model.zarr", "scores.zarr", "report.html"))
    assert not out.exists()
    assert typed("run", run_file, "--set", "model.n_components=400", "--dry-run").code == 2


def test_the_run_file_of_a_run_directory_stands_for_the_same_run(done):
    record = done.parent / "out" / "config.yaml"
    text = record.read_text()
    said = typed("run", record)
    assert said.code == 0, said.err
    assert f"kept {record.parent / 'model.zarr'}\n" in said.out
    assert record.read_text() == text


def test_more_memory_is_no_other_request(done):
    assert "kept" in typed("run", done, "--set", "run.memory=128MiB").out


# -- fresh processes


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """A file that takes several blocks within 14 MiB."""
    path = tmp_path_factory.mktemp("larger") / "images.npy"
    np.save(path, digits(12000, 16, 16))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["BlockDone", "create_array"])
def test_stopped_fit_is_done_again(tmp_path, larger, moment):
    path = tmp_path / "model.zarr"
    words = ("fit", larger, "-k", 3, "--memory", "14MiB", "-o", path, "-q")
    assert json.loads(succeeded("plan", larger, "-k", 3, "--memory", "14MiB", "--json"))["block_rows"] < 12000 / 2
    said = stopped(moment, *words)
    assert said.code == (75 if moment == "BlockDone" else 130)
    assert ("Resume with: streampca fit" if moment == "BlockDone" else "Nothing is left to resume") in said.complaint
    assert typed("inspect", path).code == 1, "what is not finished is not a model"
    succeeded(*words)
    succeeded("fit", larger, "-k", 3, "--memory", "14MiB", "-o", tmp_path / "straight.zarr", "-q")
    same_model(path, tmp_path / "straight.zarr")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["zarr", "csv"])
def test_stopped_transform_goes_on(tmp_path, source, model, suffix):
    words = ("transform", model, source, "-o", tmp_path / f"scores.{suffix}", "-q")
    said = stopped("BlockDone", *words)
    assert (said.code, f"scores.{suffix}" in os.listdir(tmp_path)) == (75, False)
    assert "Resume with: streampca transform" in said.complaint
    succeeded(*words)
    assert os.listdir(tmp_path) == [f"scores.{suffix}"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["BlockDone", "Drawing"])
def test_stopped_run_goes_on(tmp_path, run_file, undrawn, moment):
    said = stopped(moment, "run", run_file, "-q", *WITH_FIGURES)
    assert said.code == 75
    assert said.complaint
    log = tmp_path / "out" / "run.log"
    assert "stopped" in log.read_text().splitlines()[-1]
    assert (tmp_path / "out" / "model.zarr").exists() == (moment == "Drawing")
    succeeded("run", run_file, "-q", *WITH_FIGURES)
    assert set(os.listdir(tmp_path / "out" / "figures")) == FIGURES
    again = log.read_text().rpartition("started by streampca")[2]
    assert "resumed: " in again
    assert ("drawing 1 of 10" in again) == (moment == "BlockDone"), "figures drawn before are not drawn again"


@pytest.mark.slow
def test_reader_that_goes_away(model):
    gone, end = os.pipe()
    os.close(gone)
    try:
        command = [sys.executable, "-m", "streampca", "inspect", str(model)]
        done = subprocess.run(command, stdout=end, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(end)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_run_with_a_factor_for_each_pixel_of_colour_images_is_used_again(tmp_path):
    """A model has the factor of every channel, a run one for all of them."""
    np.save(tmp_path / "colours.npy", np.random.default_rng(0).integers(0, 255, (40, 6, 5, 3), dtype=np.uint8))
    np.save(tmp_path / "scale.npy", np.linspace(1, 2, 30).reshape(6, 5))
    (tmp_path / "run.yaml").write_text(
        f"collection: {{source: {tmp_path}/colours.npy}}\nprepare: {{scale: {tmp_path}/scale.npy}}\n"
        f"model: {{n_components: 2}}\noutput: {{directory: {tmp_path}/out}}\n"
    )
    succeeded("run", tmp_path / "run.yaml", "-q")
    assert "it is used again" in typed("run", tmp_path / "run.yaml").err
