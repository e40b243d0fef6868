"""What schedulers see of a command: exit codes, lines of JSON, and files of metrics."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from shell import fresh, pictures, stopped, succeeded, typed

from streampca.cli.monitoring import EXIT_CODES, METRICS, Monitor
from streampca.cli.sections import RunSection

PAGE = Path(__file__).parents[1] / "docs" / "schedulers.md"
FIT = ("fit", "scans.npy", "-k", 2, "-o", "m.zarr")


@pytest.fixture
def scans(here):
    np.save("scans.npy", pictures(40))
    return here


def lines_of(said):
    return [json.loads(line) for line in said.err.splitlines()]


def metrics_of(path):
    """Values of a file of metrics, and its labels."""
    if path.endswith(".json"):
        values = json.loads(Path(path).read_text())
        return {name: values[name] for name in METRICS if name in values}, (values["command"], values["run"])
    found = re.findall(r'^streampca_(\w+)\{command="(.*)",run="(.*)"\} (\S+)$', Path(path).read_text(), re.MULTILINE)
    return {name: float(value) for name, *_, value in found}, found[0][1:3]


def block(language, holds):
    """Text of the only block of the page that holds some words."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (text,) = (text for text in blocks if holds in text)
    return text


@pytest.mark.parametrize("door", ["options", "run file"])
def test_every_event_is_a_line_of_json(scans, door):
    Path("run.yaml").write_text(
        "collection: {source: scans.npy}\nmodel: {n_components: 2}\nrun: {log_format: json}\noutput: {model: m.zarr}\n"
    )
    said = typed(*(("run", "run.yaml") if door == "run file" else (*FIT, "--log-format", "json")))
    assert said.code == 0, said.err
    lines = lines_of(said)
    assert all({"time", "level", "event", "message"} <= set(line) for line in lines)
    events = [line["event"] for line in lines]
    assert [event for event in events if event in ("planned", "pass_started")] == ["planned", "pass_started"]
    assert {"block_done", "pass_finished", "finished"} <= set(events)
    assert next(line for line in lines if line["event"] == "planned")["plan"]["method"]
    assert sum(line["samples"] for line in lines if line["event"] == "block_done") == 40


def test_warnings_that_are_logged_are_lines_too_and_counted(here):
    Path("scans").mkdir()
    for number, image in enumerate(pictures(6)):
        Image.fromarray(image).save(f"scans/{number}.png")
    Path("scans/6.png").write_bytes(b"no picture")
    words = ("fit", "scans", "-k", 2, "--on-bad-file", "skip", "-q", "--metrics", "m.json")
    lines = lines_of(typed(*words, "-o", "m.zarr", "--log-format", "json"))
    assert {(line["level"], "6.png" in line["message"]) for line in lines} == {("warning", True)}
    assert metrics_of("m.json")[0]["warnings"] == len(lines) > 0
    said = fresh(*words, "-o", "n.zarr")
    assert said.err.count("left out 1 of the 7 files") == 1
    assert metrics_of("m.json")[0]["warnings"] == len(lines)


@pytest.mark.parametrize("words", [
    ("fit", "scans.npy", "-k", "x", "-o", "m.zarr"), ("fit", "--nothing"), ("fit", "none.npy", "-k", 2, "-o", "m.zarr"),
    ("run", "none.yaml"), ("fit", "scans.npy", "-k", 2, "-o", "scans.npy"),
], ids=str)  # fmt: skip
def test_errors_are_a_line_of_json_and_metrics_too(scans, words):
    said = typed(*words, "--log-format", "json", "--metrics", "night.json", "-q")
    line = lines_of(said)[-1]
    assert (line["level"], line["event"], line["exit_code"]) == ("error", "failed", said.code)
    assert line["message"] == typed(*words, "-q").complaint
    assert metrics_of("night.json")[0]["exit_status"] == said.code != 0


@pytest.mark.parametrize("path", ["night.json", "night.prom"])
def test_metrics_of_every_long_command(scans, path):
    def measured(*words):
        succeeded(*words, "--metrics", path, "-q")
        values, labels = metrics_of(path)
        assert labels == (words[0], "night")
        assert values["exit_status"] == 0
        assert values["duration_seconds"] > 0 < values["peak_memory_bytes"]
        return values

    fitted = measured(*FIT)
    assert (fitted["samples"], fitted["read_bytes"], fitted["model_samples"]) == (40, 40 * 56, 40)
    assert set(fitted) == set(METRICS)
    assert measured("transform", "m.zarr", "scans.npy", "-o", "s.zarr")["samples"] == 40
    assert measured("neighbors", "s.zarr", "--n-neighbors", 3, "-o", "g.zarr")["exit_status"] == 0
    assert measured("hsic", "scans.npy", "scans.npy")["samples"] == 40
    for part in (1, 2):
        measured("fit", "scans.npy", "-k", 2, "--part", f"{part}/2", "-o", f"part{part}.zarr")
    merged = measured("merge", "part1.zarr", "part2.zarr", "-o", "whole.zarr")
    assert merged["model_samples"] == 40
    Path("run.yaml").write_text(
        f"collection: {{source: scans.npy}}\nrun: {{metrics: {path}}}\noutput: {{directory: out}}\n"
    )
    succeeded("run", "run.yaml", "-q")
    assert metrics_of(path)[0]["model_samples"] == 40
    assert metrics_of(path)[1] == ("run", "night")


def test_files_that_are_no_metrics_are_not_replaced(scans):
    Path("own.json").write_text('{"a": 1}')
    said = typed(*FIT, "--metrics", "own.json", "-q")
    assert (said.code, Path("own.json").read_text(), Path("m.zarr").exists()) == (1, '{"a": 1}', False)
    assert "own.json exists and is no file of metrics" in said.complaint
    complaint = typed(*FIT, "--metrics", "own.txt").complaint
    assert complaint == "--metrics own.txt: give a path that ends in .json or .prom."


@pytest.mark.parametrize("form", ["json", "text"])
def test_warnings_of_python_are_written_in_the_format_of_the_log(form, capsys):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with Monitor().listening(RunSection(log_format=form), quiet=True):
            warnings.warn("two\nlines", UserWarning, stacklevel=1)
    said = capsys.readouterr().err
    if form == "json":
        event = json.loads(said)
        assert (event["level"], event["event"]) == ("warning", "warned")
        assert re.fullmatch(r"two lines \(UserWarning in .*test_monitoring\.py, line \d+\)", event["message"])
    else:
        assert (said, [str(warning.message) for warning in shown]) == ("", ["two\nlines"])


def test_help_loads_nothing_that_only_commands_need():
    script = "import sys\nfrom streampca.cli.main import main\ntry: main()\n"
    script += "finally: print(sorted({'numpy', 'zarr', 'rich', 'psutil'} & {*sys.modules}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("log", ["text", "json"])
def test_metrics_that_cannot_be_written_are_a_warning(scans, log):
    """The folder of the metrics can be made when the command starts, and no more when it ends."""
    succeeded(*FIT, "-q")
    said = typed("transform", "m.zarr", "scans.npy", "-o", "s.csv", "--metrics", "s.csv/night.json", "-q",
                 "--log-format", log)  # fmt: skip
    assert (said.code, Path("s.csv").is_file()) == (0, True)
    message = lines_of(said)[-1]["message"] if log == "json" else said.err
    assert message.startswith("warning: the metrics could not be written: " if log == "text" else "the metrics could")


def test_each_exit_code_is_met(scans):
    said = {
        0: typed(*FIT, "-q"),
        1: typed("fit", "none.npy", "-k", 2, "-o", "n.zarr", "-q"),
        2: typed("fit", "scans.npy", "-k", 200, "-o", "n.zarr", "-q"),
        75: stopped("BlockDone", "fit", "scans.npy", "-k", 2, "-o", "n.zarr", "-q", "--metrics", "n.prom"),
        130: stopped("BlockDone", "fit", "scans.npy", "-k", 2, "-o", "o.zarr", "--no-checkpoint", "-q"),
    }
    assert {code: each.code for code, each in said.items()} == {code: code for code in EXIT_CODES}
    assert metrics_of("n.prom")[0]["exit_status"] == 75
    table = dict(re.findall(r"^\| (\d+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    assert table == {str(code): meaning for code, meaning in EXIT_CODES.items()}
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)) == METRICS
    shown = " ".join(succeeded("--help").split())
    assert all(f"{code} {meaning}" in shown for code, meaning in EXIT_CODES.items())


@pytest.mark.slow
def test_the_jobs_of_an_array_and_their_merge_run_without_slurm(scans):
    """`scontrol` is a script that notes what it is called with; signals reach the fit through the shell."""
    np.save("scans.npy", pictures(40000, 32, 32))
    Path("bin").mkdir()
    Path("bin/scontrol").write_text("#!/bin/sh\necho $* >> requeued\n")
    Path("bin/scontrol").chmod(0o755)
    path = f"{scans}/bin{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    job = ["bash", "-c", block("bash", "--array=1-4").replace("--memory 6GiB", "--memory 80MiB")]

    def environment(task):
        return os.environ | {"PATH": path, "SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": "2",
                             "SLURM_ARRAY_JOB_ID": "7"}  # fmt: skip

    with subprocess.Popen(job, env=environment(1), stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if json.loads(line)["event"] == "block_done":
                process.send_signal(signal.SIGUSR1)
                break
        process.communicate()
    assert process.returncode == 75
    assert Path("requeued").read_text() == "requeue 7_1\n"
    resumed = subprocess.run(job, env=environment(1), capture_output=True, text=True, check=True)
    assert "resumed" in {json.loads(line)["event"] for line in resumed.stderr.splitlines()}
    subprocess.run(job, env=environment(2), capture_output=True, text=True, check=True)
    merge = [*job[:2], block("bash", "exec streampca merge")]
    subprocess.run(merge, env=environment(2), check=True, capture_output=True)
    assert metrics_of("merge.prom")[0]["model_samples"] == 40000


SNAKEMAKE = os.environ.get("SNAKEMAKE") or shutil.which("snakemake")


@pytest.mark.slow
@pytest.mark.skipif(SNAKEMAKE is None, reason="snakemake is not installed, nor named by the variable SNAKEMAKE")
def test_snakemake_runs_the_documented_file_and_resumes_what_was_stopped(scans):
    Path("Snakefile").write_text(block("text", "rule all"))
    command = re.search(r"streampca fit \{input\} (.*) -o \{output\}", Path("Snakefile").read_text())[1].split()
    assert stopped("BlockDone", "fit", "scans.npy", *command, "-o", "model.zarr", "-q").code == 75
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    snakemake = [SNAKEMAKE, "--cores", "2"]
    done = subprocess.run(snakemake, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "resumed" in {json.loads(line)["event"] for line in Path("logs/fit.jsonl").read_text().splitlines()}
    assert metrics_of("logs/fit.json")[0]["model_samples"] == 40
    assert len(Path("scores.csv").read_text().splitlines()) == 41
    assert Path("report.html").stat().st_size > 10_000
    again = subprocess.run(snakemake, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True)
    assert "Nothing to be done" in again.stdout + again.stderr
