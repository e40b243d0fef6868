"""The benchmark scripts run, on small data, and say what they promise to say."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from shell import python

from streampca.planning.rates import RATES, Rates

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(script, *options, first=""):
    """Run a script by itself, with fresh processes for what it measures, after some first lines."""
    name = script.removesuffix(".py")
    done = python(f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import {name}; {first}{name}.main()", *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Run a script in this process: its numbers mean little, and it prints the same."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def run_script(script, *options):
        module = import_module(script.removesuffix(".py"))
        monkeypatch.setattr(module, "in_fresh_process", lambda job, *given: job(*given), raising=False)
        monkeypatch.setattr(sys, "argv", [script, *options])
        module.main()
        return capsys.readouterr().out

    return run_script


def cells(output):
    """The tables in an output, row by row, by their first cell."""
    lines = (re.split(r"\s{2,}", line.strip()) for line in output.splitlines())
    return {first: [cell.strip() for cell in rest] for first, *rest in lines if rest}


def test_small_prints_both_times_and_their_ratio(run_here):
    ours, peer, ratio, aim = map(
        float, cells(run_here("small.py", "--rounds", "1", "--only", "iris"))["PCA, iris, k = 2"][:4]
    )
    assert ours > 0
    assert ratio == pytest.approx(ours / max(peer, 1), abs=0.02)
    assert aim == 3


def test_limits_prints_floors_ratios_and_phases():
    """In one process of its own: it puts clocks into the package, and plans of one thread."""
    size = ("--samples", "2000", "--side", "16", "--components", "5")
    first = "limits.in_fresh_process = lambda job, *given: job(*given); "
    table = cells(run("limits.py", *size, "--rounds", "1", "--phases", first=first))
    ours, floor = float(table["ours"][0]), float(table["products, 1024 rows"][0])
    assert ours > 0
    assert floor > 0
    parts = {"reading", "centring, to float32", "product (ssyrk)", "adding p x p, and checks", "probes", "eigenvectors"}
    assert parts <= set(table)
    watched = sum(float(values[0]) for name, values in table.items() if len(values) >= 2 and "%" in values[1])
    assert watched == pytest.approx(float(table["all"][0]), abs=0.01)  # the parts and the rest make the whole


@pytest.mark.parametrize("case", ["clouds", "textures", "photographs", "transform", "reconstruct"])
def test_limits_prints_the_parts_of_every_case(run_here, case):
    printed = run_here("limits.py", "--case", case, "--samples", "200", "--side", "16", "--rounds", "1")
    table = cells(printed)
    parts = [name.partition(",")[0] for name in table]
    assert {"reading", "products", "ours"} <= set(parts)
    assert ("writing by Zarr" in parts) == (case in ("transform", "reconstruct"))
    assert re.search(rf"^{case}: [\d.]+ times the largest part", printed, flags=re.MULTILINE)


def test_tight_budgets_hold_from_outside():
    printed = run("tight.py", "--formats", "hdf5 plain", "--cases", "3:4")
    sizes = re.search(
        r"^hdf5 plain 3: copy, .*: smallest (\d+), budget ([\d.]+), peak ([\d.]+) MiB", printed, re.MULTILINE
    )
    smallest, budget, peak = map(float, sizes.groups())
    assert smallest <= budget
    assert 0 < peak <= budget
    cases, *_, over, otherwise = cells(printed)["hdf5 plain"]
    assert (cases, over, otherwise) == ("1", "0", "0")


def test_distances_print_passes_residual_and_peak(run_here):
    printed = run_here("distances.py", "--samples", "600", "--dimensions", "40", "--layout", "zarr")
    passes, residual, apart, *_ = cells(printed)["zarr"]
    assert int(passes) <= 10
    assert float(residual) <= 1e-5
    assert float(apart) < 1e-5
    assert "share of negative eigenvalues between" in printed


def test_choices_prints_what_was_chosen_from(run_here):
    threads = ("--sides", "16", "--pictures", "2")
    size = ("--features", "64", "--megabytes", "96", "--sizes", "64")
    printed = run_here("choices.py", "--rounds", "1", *size, *threads)
    rows = {"scipy for all", "numpy between", "24 MiB", "96 MiB", "p = 64", "p = 256, one thread", "p = 256, two"}
    assert rows <= set(cells(printed))


def test_batches_print_ratios_bits_and_what_sketches_keep(run_here):
    size = ("--samples", "1500", "--single", "100", "--side", "16", "--components", "5", "--rounds", "1")
    table = cells(run_here("batches.py", *size))
    assert [table[f"by {rows}"][3] for rows in (256, 1000, 10007, 1)] == ["yes"] * 4
    assert 0.98 <= float(table["20 rows"][0]) <= 1


def test_hsic_prints_level_power_and_what_features_are_off_by(run_here):
    size = ("--pairs", "3", "--samples", "400", "--many", "3000", "--features", "128", "--draws", "2")
    table = cells(run_here("hsic.py", *size))
    assert {"x2 = sin x1", "200 landmarks", "128 random features, unbiased", "200 landmarks, tested"} <= set(table)


def test_kernels_print_times_and_residuals(run_here):
    size = ("--samples", "800", "--side", "12", "--landmarks", "60", "--components", "3", "--subset", "400")
    printed = run_here("kernels.py", *size, "--rounds", "1")
    assert "times the linear fit" in printed
    assert len(cells(printed)) >= 3


def test_peers_shows_what_an_offset_does(run_here):
    size = ("--samples", "2000", "--side", "16", "--components", "12")
    printed = run_here("peers.py", "--problem", "offset", *size, "--rounds", "1", "--only", "eigh,partial_fit")
    assert "failed" not in printed
    assert len(re.findall("^sklearn ", printed, flags=re.MULTILINE)) == 3
    table = cells(printed)
    ours = [float(cell) for cell in table["streampca.fit, from the file"][-3:]]
    theirs = [float(cell) for cell in table["sklearn PCA covariance_eigh, float32 array"][-3:]]
    assert max(ours) < 1e-5
    assert max(theirs) > 1  # the reason for the row: float32 products of values that are not centred


def test_suite_lists_scripts_and_shows_results_of_peers(tmp_path, run_here):
    """What peers took is kept, and becomes a table."""

    def suite(*words):
        command = [sys.executable, "-m", "benchmarks", *map(str, words)]
        done = subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True, timeout=100, check=True)
        return done.stdout

    listed = suite()
    assert set(cells(listed)) == {path.stem for path in BENCHMARKS.glob("*.py")} - {"__main__", "fresh", "synthetic"}
    kept = tmp_path / "peers.json"
    size = ("--samples", "600", "--side", "12", "--components", "4", "--rounds", "2", "--only", "float32 array")
    run_here("peers.py", *size, "--json", str(kept))
    printed = suite("table", kept)
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| s")]
    assert rows[0][0] == "| streampca.fit, from the file"
    assert len(rows) == 3
    assert all(float(row[2]) >= 0 and float(row[4].removesuffix(" |")) < 1e-3 for row in rows)
    assert "--problem" in suite("run", "peers", "--help")


def test_front_names_who_is_ahead_and_draws_it(tmp_path, run_here, monkeypatch):
    """Measured once; then read again with times by which a peer is ahead, or is not."""
    front = import_module("front")
    kept, drawn = tmp_path / "front.json", tmp_path / "front.svg"
    size = ("--spectra", "low_rank", "--shapes", "300x12", "--components", "4", "--rounds", "2")
    monkeypatch.setattr(front, "MARGIN", math.inf)
    monkeypatch.setattr(front, "CHEAP", math.inf)
    with pytest.raises(SystemExit) as ended:
        run_here("front.py", *size, "--only", "streampca,n_iter=7,svd_compressed", "--json", str(kept))
    assert not ended.value.code
    results = json.loads(kept.read_text())
    (problem,) = results["problems"]
    assert {point["package"] for point in problem["points"]["memory"].values()} >= {"streampca", "sklearn", "dask"}
    assert problem["points"]["file"]["sklearn randomized n_iter=7"]["error"] < 1e-4
    assert problem["failures"] == []
    monkeypatch.undo()
    for name, point in problem["points"]["file"].items():
        point["seconds"] = [1.0 if name.startswith("streampca") else 0.8 if name.endswith("n_iter=7") else 2.0]
    for point in problem["points"]["memory"].values():
        point["seconds"] = [1.0]
    kept.write_text(json.dumps(results))
    assert [name for name, *_ in front.losses(problem["points"]["file"], "wall")] == ["sklearn randomized n_iter=7"]
    monkeypatch.setattr(sys, "argv", ["front.py", "--results", str(kept), "--figure", str(drawn)])
    with pytest.raises(SystemExit) as ended:
        front.main()
    assert ended.value.code == 1
    assert "low rank and noise, 300 x 144" in drawn.read_text()


def test_screening_prints_every_seed(run_here):
    with pytest.raises(SystemExit) as ended:
        run_here("screening.py", "--features", "200", "--samples", "60")
    assert ended.value.code in (0, 1)


def test_budget_compares_peaks():
    size = ("--gigabytes", "0.004", "--side", "16", "--components", "5", "--layouts", "zarr across features")
    printed = run("budget.py", *size, "--memory", "48MiB")
    peaks = {name: float(values[1]) for name, values in cells(printed).items() if ": " in name}
    assert len(peaks) == 3
    assert max(peaks.values()) <= 48


def test_budget_makes_png_files_that_are_opened(tmp_path, run_here):
    budget = import_module("budget")
    collection = budget.opened(budget.as_png(tmp_path, 3, budget.PNG_SIDE))
    assert collection.shape == (3, 32, 32)


def test_budget_fails_when_a_peak_is_higher(run_here, monkeypatch):
    budget = import_module("budget")
    monkeypatch.setattr(budget, "steps", lambda path, k, memory: {"fit": budget.Step(1.0, 2**26, 2**20)})
    with pytest.raises(SystemExit, match="1 of 1 peaks exceed the budget"):
        run_here("budget.py", "--gigabytes", "0.0001", "--memory", "32MiB", "--layouts", "npy")


def test_many_files_are_listed_and_found_again(run_here):
    printed = run_here("many_files.py", "--files", "2500", "--each", "100")
    table = cells(printed)
    for way in ("listed", "listed and kept", "from the kept listing"):
        assert table[way][0] == "2500 x 8 x 8"
        assert float(table[way][1]) < 20


def test_copies_print_floors_and_codecs(tmp_path, run_here):
    printed = run_here("copies.py", "--samples", "3000", "--side", "16", "--rounds", "1", "--directory", str(tmp_path))
    table = cells(printed)
    assert all(float(table[layout][1]) > 0 for layout in ("npy", "samples", "across"))
    pictures = next(tmp_path.glob("*.npy"))
    printed = run_here("copies.py", "--codecs", str(pictures), "--rounds", "1")
    assert float(cells(printed)["Blosc zstd 1, shuffle"][0]) < 1.1


def test_rates_measures_every_rate_that_plans_count_with(run_here):
    printed = run_here("rates.py", "--samples", "64", "--megabytes", "2", "--rounds", "1")
    table = cells(printed)
    for rate in fields(Rates):
        measured, planned = table[rate.name]
        assert float(measured) > 0
        assert float(planned) == getattr(RATES, rate.name)


def test_ahead_prints_the_parts(run_here):
    size = ("--samples", "300", "--sides", "16", "--picture-sides", "--components", "4")
    printed = run_here("ahead.py", *size, "--rounds", "1")
    parts = re.findall(r"^(decoding, 1 at a time|computing|fit) +(\S+)", printed, flags=re.MULTILINE)
    assert [part for part, _ in parts] == ["decoding, 1 at a time", "computing", "fit"]
    assert all(float(seconds) > 0 for _, seconds in parts)
    found = re.findall(r"^(.*): the fit takes (\S+) times .* \((\S+) is aimed at\)", printed, flags=re.MULTILINE)
    assert [(what, most) for what, _, most in found] == [("gzip HDF5", "1.25")]
    assert float(found[0][1]) > 0


def test_cluster_prints_what_sharing_costs():
    size = ("--samples", "3000", "--side", "16", "--workers", "1")
    printed = run("cluster.py", *size, "--rounds", "1", "--memory", "64MiB")
    table = cells(printed)
    assert {"one process", "halves", "1 workers"} <= set(table)
    assert float(re.search(r"workers to one process: ([0-9.]+) \(at most 1.15\)", printed)[1]) > 0
    assert float(re.search(r"workers to halves: ([0-9.]+) \(at most 1.11\)", printed)[1]) > 0
    rows = [line.split() for line in printed.splitlines() if line.startswith("1 workers")]
    assert float(rows[0][-1]) < float(rows[0][-2]) + 16, "the peak is within the memory estimate"
    assert float(re.search(r"to processes by hand: ([0-9.]+) \(at most 1.11\)", printed)[1]) > 0


def test_kills_are_survived():
    size = ("--samples", "1000", "--wide", "60", "--side", "64")
    printed = run("kills.py", *size, "--kills", "1", "--cases", "sweep", "--rounds", "0")
    assert cells(printed)["dual, sweep"][0] == "1"


def test_kills_fail_when_an_answer_is_another_or_too_much_is_repeated(tmp_path, run_here, monkeypatch):
    kills = import_module("kills")
    notes = [kills.Note(at, 1, "done", 10) for at in (1.0, 2.0, 3.0)]
    dead, ended = kills.Attempt(-9, 3.0, "", notes), kills.Attempt(0, 4.0, "", notes * 2)
    case = kills.Case("fit", ["fit"], ("m.npy",))

    def outcome(written, *attempts):
        left, found = iter(attempts), kills.Outcome()

        def attempt(case, place, options, moment=None):
            (place / "m.npy").write_text(written)
            return next(left)

        monkeypatch.setattr(kills, "attempt", attempt)
        kills.broken(case, whole, tmp_path / "killed", 0.0, iter([1.0]), found)
        return found

    (tmp_path / "m.npy").write_text("right")
    whole = kills.Whole({"m.npy": kills.digest(tmp_path / "m.npy")}, ["m.npy"], ended)
    assert outcome("right", dead, kills.Attempt(0, 3.0, "", notes)).wrong == []
    assert outcome("right", dead, ended).wrong == ["fit: 30 samples were done again, and intervals hold 10"]
    wrong = outcome("wrong", dead, kills.Attempt(0, 3.0, "", notes)).wrong
    assert wrong == ["fit: m.npy was incomplete after a kill", "fit: m.npy is not that of the unbroken run"]


def test_versions_compares_two_checkouts(tmp_path):
    """The first of them only notes what it is told to do; this one does it."""
    (tmp_path / "streampca").mkdir()
    noted = tmp_path / "noted"
    note = f"import sys; open({str(noted)!r}, 'a').write(sys.argv[1] + chr(10))"
    (tmp_path / "streampca" / "__main__.py").write_text(note)
    checkouts = (str(tmp_path), str(BENCHMARKS.parent))
    table = cells(run("versions.py", *checkouts, "--rounds", "1", "--scale", "0.01", "--only", "covariance"))
    assert noted.read_text().split() == ["fit", "transform"]
    for step in ("covariance fit", "covariance transform"):
        assert float(table[step][2]) > 1, "importing alone takes longer"


def test_unfolding_prints_rolls_and_walks(run_here):
    printed = run_here("unfolding.py", "--only", "roll,line", "--seeds", "1", "--length", "32", "--height", "6")
    table = cells(printed)
    assert float(table["seed 100"][0]) > 0.99
    assert float(table["seed 100, 1 steps back"][0]) == pytest.approx(0.5, abs=0.015)


def test_surfaces_prints_a_roll_and_a_blob(run_here):
    rows = [line.split() for line in run_here("surfaces.py", "--points", "800", "--images", "600").splitlines()]
    found = {(row[0], row[2]): row for row in rows if row and row[0] in ("roll", "blob")}
    assert set(found) == {
        ("blob", "isomap"),
        *(("roll", each) for each in ("neighbours", "spectral-embedding", "isomap")),
    }
    for surface in ("roll", "blob"):
        assert min(float(value) for value in found[surface, "isomap"][5:7]) > 0.98


def test_busy_prints_fair_shares(run_here, monkeypatch):
    monkeypatch.setattr(import_module("busy"), "MOST", float("inf"))  # a machine that tests is busy itself
    size = ("--scale", "0.02", "--components", "3", "--rounds", "1", "--busy", "1")
    threads, alone, beside, fair, *_ = cells(run_here("busy.py", *size, "--only", "covariance"))["covariance, 1 GiB"]
    assert int(threads) >= 1
    assert min(map(float, (alone, beside, fair))) > 0


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_gpu_prints_limits_and_everybody_on_torchs_processor(tmp_path, run_here):
    size = ("--samples", "300", "--side", "12", "--components", "4", "--order", "64", "--megabytes", "1")
    size += ("--cases", "digits,large", "--gigabytes", "0.002", "--rounds", "1", "--json", str(tmp_path / "gpu.json"))
    printed = run_here("gpu.py", "--device", "torch:cpu", *size)
    table, kept = cells(printed), json.loads((tmp_path / "gpu.json").read_text())
    assert "failed" not in printed
    assert float(table["products, float32, GFLOP/s"][0]) > 0
    assert table["link, pinned, GB/s"] == ["none"]
    for where in ("torch:cpu", "the processor"):
        assert float(table[f"streampca on {where}, from the file"][-1]) < 1e-8
        assert float(table[f"streampca on {where}, within 1 GiB"][0]) > 0
    assert float(table["torch.pca_lowrank on torch:cpu, niter=6, array as stored"][-1]) < 1e-2
    assert ("cuML PCA, float32 array: not installed" in printed) == (find_spec("cuml") is None)
    assert kept["limits"]["products, float64, GFLOP/s"] > 0
    assert len(kept["cases"]["digits"]["peers"]["streampca on torch:cpu, from the file"]["seconds"]) == 1
    assert kept["cases"]["digits"]["device_memory"]["planned"] > 0
    assert set(kept["cases"]["large"]["fits"]) == {"on torch:cpu", "on the processor"}


def test_large_prints_passes_and_time_per_sample(run_here):
    printed = run_here("large.py", "--gigabytes", "0.02")
    table = cells(printed)
    seconds, passes, *_ = table["0.02 GB, streampca"]
    assert float(seconds) > 0
    assert int(passes) >= 1
    assert "time per sample and pass differs by" in printed
