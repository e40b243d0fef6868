"""Run files of strangers: they run nothing, connect to nothing, and tell nobody what stands in the environment."""

from __future__ import annotations

import base64
import http.server
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import dask
import numpy as np
import pytest
import yaml
from shell import fresh, pictures, succeeded, typed

import streampca
from streampca.cli.config import is_run_file, load_run, takes_variables
from streampca.cli.options import keys_of
from streampca.cli.pipeline import execute
from streampca.cli.run_file import make_run
from streampca.cli.sections import SECTIONS
from streampca.errors import RequestError
from streampca.execution.cluster_options import FOLDERS, OPTIONS, checked_options, with_address
from streampca.execution.executor import cluster_of
from streampca.kinds.description import fields_of, hints_of
from streampca.kinds.registry import KINDS, kind_class

pytest.importorskip("distributed")

SECRET = "5cret-of-this-user"  # noqa: S105 - what must not be told
SECONDS = 5.0  # that a refusal may take

# A scheduler whose answer is unpickled by whoever asks, as any answer of a scheduler of dask's is.
HOSTILE = """
import asyncio, os, sys
from distributed.comm import listen
from distributed.protocol import to_serialize

folder = sys.argv[1]

class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.path.join(folder, "ran"),)

async def answered(comm):
    open(os.path.join(folder, "asked"), "w").close()
    await comm.read()
    await comm.write([{"op": "stream-start", "answer": to_serialize(Bomb())}])

async def main():
    listener = await listen("tcp://127.0.0.1:0", answered)
    print(listener.contact_address, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Address of a scheduler, and the folder where it and its answer leave their marks."""
    folder = tmp_path_factory.mktemp("hostile")
    command = [sys.executable, "-c", HOSTILE, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip(), folder
        finally:
            process.kill()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with images, and a secret in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setenv("SCHEME", "tcp:")
    np.save("x.npy", pictures())
    return tmp_path


@pytest.fixture
def server():
    """URL of a server, and the list of what it is asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815 - as the class calls them

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}", asked
        served.shutdown()


def run_file(**sections):
    """Write a run file; a fit of x.npy but for what is given."""
    data = {"collection": {"source": "x.npy"}, "model": {"n_components": 2}, "output": {"model": "m.zarr"}}
    Path("run.yaml").write_text(yaml.safe_dump({**data, **sections}))


def refused(*words, code=2):
    """Return the one line of a run that is refused, in time, without a word of the secret, and leaves nothing."""
    before, began = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}, time.monotonic()
    said = typed("run", "run.yaml", "-q", *words)
    assert time.monotonic() - began < SECONDS
    assert said.code == code, said.err
    assert SECRET not in said.out + said.err
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before
    return said.complaint


# -- addresses of schedulers


@pytest.mark.slow
def test_the_bait_is_poisonous(here, hostile):
    """Who names the hostile scheduler on the command line runs what it sends; the tests below are of something."""
    address, folder = hostile
    said = fresh("fit", "x.npy", "-k", 2, "--cluster", address, "--cluster-timeout", "2s", "-o", "m.zarr", "-q")
    assert said.code != 0
    assert (folder / "ran").exists()
    for name in ("ran", "asked"):
        path = folder / name
        (path.rmdir if path.is_dir() else path.unlink)()


RUNS = {
    "address": "{{cluster: '{tcp}'}}",
    "address, workers": "{{cluster: '{tcp}', workers: 2}}",
    "large letters": "{{cluster: '{large}'}}",
    "tls": "{{cluster: 'tls://{host}'}}",
    "merged": "{{<<: {{cluster: '{tcp}'}}}}",
    "variable in it": "{{cluster: '{tcp}/${{SECRET}}'}}",
    "variable as host": "{{cluster: 'tcp://${{SECRET}}.example:1'}}",
    "variable as scheme": "{{cluster: '${{SCHEME}}//{host}'}}",
    "variable for all": "{{cluster: '${{SECRET}}'}}",
    "escaped variable": "{{cluster: '{tcp}$${{SECRET}}'}}",
    "no scheme": "{{cluster: '{host}'}}",
    "mapping": "{{cluster: {{address: '{tcp}'}}}}",
    "other key": "{{address: '{tcp}'}}",
    "list": "{{cluster: ['{tcp}']}}",
    "option": "{{cluster: slurm, workers: 1, cluster_options: {{scheduler: '{tcp}'}}}}",
    "queue": "{{cluster: slurm, workers: 1, cluster_options: {{queue: '{tcp}'}}}}",
    "scratch": "{{scratch: '{tcp}/folder'}}",
    "scheduler options": "{{cluster: slurm, workers: 1, cluster_options: {{scheduler_options: {{a: '{tcp}'}}}}}}",
}


def test_values_of_other_tags_are_refused_wherever_they_stand(here):
    """As bytes, sets or ordered mappings they would be checked as no text, and validated as one."""

    def as_bytes(text):
        return "!!binary " + base64.b64encode(text.encode()).decode()

    address, url = as_bytes("tcp://127.0.0.1:1"), "http://127.0.0.1:1/x.npy"
    rows = {
        "run": [
            f"{{cluster: {address}}}",
            f"{{cluster: slurm, workers: 1, cluster_options: {{{as_bytes('python')}: /tmp/x}}}}",
            f"{{cluster: slurm, workers: 1, cluster_options: {{? {as_bytes('job_script_prologue')} : [ls]}}}}",
            f"{{cluster: slurm, workers: 1, cluster_options: {{queue: {as_bytes('$(ls)')}}}}}",
        ],
        "collection": [
            f"{{source: {as_bytes(url)}}}",
            f"{{source: [{as_bytes(url)}]}}",
            f"{{source: !!set {{'{url}'}}}}",
            f"{{source: x.npy, labels: !!omap [a: '{url}']}}",
            f"{{source: x.npy, labels: !!pairs [a: '{url}']}}",
            f"{{source: &u {as_bytes(url)}, labels: *u}}",
        ],
        "apply": [as_bytes(url), "!!python/name:os.system", "!own {a: 1}"],
    }
    for section, values in rows.items():
        for value in values:
            rest = {"collection": "{source: x.npy}", "model": "{n_components: 2}", "output": "{model: m.zarr}"}
            written = {**rest, section: value}
            Path("run.yaml").write_text("".join(f"{name}: {text}\n" for name, text in written.items()))
            assert " has a value with the tag !" in refused(), value
    Path("run.yaml").write_text(
        "collection: {source: !!str x.npy}\nmodel: {n_components: !!int 2}\noutput: {model: m.zarr}\n"
    )
    succeeded("run", "run.yaml", "-q")


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(
    "words", [(), ("--dry-run",), ("--print-config",), ("--allow-env", "SCHEME", "--allow-remote")]
)
def test_a_run_file_connects_to_no_scheduler(here, hostile, name, words):
    address, folder = hostile
    run_file()
    host = address.removeprefix("tcp://")
    section = RUNS[name].format(tcp=address, large=address.upper(), host=host)
    with open("run.yaml", "a") as file:
        file.write(f"run: {section}\n")
    refused(*words)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(("key", "value", "said"), [
    ("scratch", "http://a/b", "run.scratch = 'http://a/b' is an address, and a scratch copy lies"),
    ("cluster_options", {"queue": "tcp://a:1"}, "on the command line: --set run.cluster_options.NAME=..."),
])  # fmt: skip
def test_addresses_where_there_are_none_have_remedies_of_their_own(here, key, value, said):
    run_file(run={key: value})
    assert said in refused()


@pytest.mark.parametrize(("key", "form"), [
    ("cluster", lambda address: address),
    ("cluster", lambda address: [address]),
    ("cluster", lambda address: {"address": address}),
    ("address", lambda address: address),
])  # fmt: skip
def test_addresses_are_refused_with_a_remedy_that_works(here, hostile, key, form):
    address, _ = hostile
    run_file(run={key: form(address)})
    line = refused()
    assert line == (
        f"run file run.yaml: run.{key} names a scheduler's address, which a run file cannot choose; if you trust what "
        "runs there, write run: {cluster: configured}, and set DASK_SCHEDULER_ADDRESS or give --set "
        "run.cluster=..."
    )
    run_file(run={"cluster": "configured"})
    run = load_run("run.yaml", [f"run.cluster={address}"])
    assert cluster_of(run.how()).cluster == address
    with dask.config.set(scheduler_address=address):
        assert with_address(cluster_of(load_run("run.yaml").how())).cluster == address
    with dask.config.set(scheduler_address="10.0.0.1:8786"):
        assert with_address(cluster_of(load_run("run.yaml").how())).cluster == "tcp://10.0.0.1:8786"
    with pytest.raises(RequestError, match=r"a scheduler that dask's configuration names \(DASK_SCHEDULER_ADDRESS\)"):
        execute(load_run("run.yaml"))


@pytest.mark.slow
def test_the_scheduler_of_dasks_configuration_is_used_at_every_door(here):
    from distributed import LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        dask.config.set(scheduler_address=cluster.scheduler_address),
    ):
        streampca.fit("x.npy", n_components=2, cluster="configured", output="python.zarr")
        succeeded("fit", "x.npy", "-k", 2, "--cluster", "configured", "-o", "command.zarr", "-q")
        run_file(run={"cluster": "configured"}, output={"model": "file.zarr"})
        succeeded("run", "run.yaml", "-q")
    plans = [streampca.load(f"{name}.zarr").provenance["plan"] for name in ("python", "command", "file")]
    assert [plan["workers"] for plan in plans] == [plans[0]["workers"]] * 3
    assert plans[0]["workers"] > 1, "others may come"


def test_records_of_a_run_leave_addresses_out():
    options = {"collection": {"source": "a"}, "run": {"cluster": "tcp://a:1", "workers": 3}}
    for complete in (False, True):
        text = make_run(options).to_yaml(complete=complete)
        assert "://" not in text
        found = yaml.safe_load(text)["run"]
        assert {"cluster": "configured", "workers": 3}.items() <= found.items(), "what is left is true"


# -- secrets of the environment


def places(text):
    """Run files that hold a text where something could be sent, or told to others, by name."""
    batch = {"cluster": "slurm", "workers": 1}
    options = {
        name: batch | {"cluster_options": {name: text}} for name in OPTIONS if name not in ("cores", "processes")
    }
    return {
        "source": {"collection": {"source": f"URL/{text}/x.npy"}},
        "source in a list": {"collection": {"source": ["x.npy", f"URL/{text}.npy"]}},
        "host of a source": {"collection": {"source": f"http://{text}.example/x.npy"}},
        "query": {"collection": {"source": f"URL/x.npy?{text}"}},
        "scheme and host": {"collection": {"source": "${SCHEME}//" + text}},
        "file at a URL": {"collection": {"source": f"file:///tmp/{text}"}},
        "mask": {"prepare": {"mask": f"URL/{text}.npy"}},
        "scale": {"prepare": {"scale": f"URL/{text}.npy"}},
        "labels": {"collection": {"source": "x.npy", "labels": f"URL/{text}"}},
        "weights of samples": {"collection": {"source": "x.npy", "sample_weight": f"URL/{text}"}},
        "target": {
            "collection": {"source": "x.npy", "target": f"URL/{text}"},
            "model": {"kind": "fisher-discriminant"},
        },
        "actions": {
            "collection": {"source": "x.npy", "target": f"URL/{text}"},
            "model": {"kind": "action-respecting-embedding"},
        },
        "graph": {"model": {"kind": "isomap", "graph": f"URL/{text}"}},
        "model": {"apply": f"URL/{text}", "model": {}, "output": {"scores": "s.npy"}},
        "updated model": {"update": {"model": f"URL/{text}"}},
        "output": {"output": {"model": f"URL/{text}.zarr"}},
        "kind": {"model": {"kind": text}},
        "kernel": {"model": {"kind": "kernel-pca", "kernel": text}},
        "part": {"run": {"part": text}},
        "key": {"collection": {"source": "x.npy", "key": text}},
        "condition": {"collection": {"source": "x.npy", "where": text}},
        "cluster": {"run": {"cluster": text}},
        **{f"option {name}": {"run": run} for name, run in options.items()},
    }


def with_url(data, url):
    if isinstance(data, dict):
        return {key: with_url(value, url) for key, value in data.items()}
    if isinstance(data, list):
        return [with_url(value, url) for value in data]
    return data.replace("URL", url) if isinstance(data, str) else data


@pytest.mark.parametrize("name", places(""))
@pytest.mark.parametrize("words", [(), ("--allow-remote", "--allow-env", "SCHEME")], ids=["", "allowed"])
def test_secrets_of_the_environment_are_sent_nowhere(here, server, name, words):
    url, asked = server
    run_file(**with_url(places("${SECRET}")[name], url))
    line = refused(*words)
    assert not asked
    if words or "://" not in line:
        assert "replaced in local paths and numbers only; if its value may leave" in line


READ = (
    "source",
    "source in a list",
    "mask",
    "scale",
    "labels",
    "weights of samples",
    "target",
    "actions",
    "graph",
    "model",
)


@pytest.mark.parametrize("name", READ)
def test_urls_of_a_run_file_are_fetched_only_where_that_is_allowed(here, server, name):
    """Whichever key names them; with the option they are."""
    url, asked = server
    run_file(**with_url(places("plain")[name], url))
    assert "fetched only with --allow-remote" in refused()
    assert not asked
    refused("--allow-remote", code=1)
    assert asked


def test_a_run_file_writes_to_urls_only_where_that_is_allowed(here, server):
    run_file(**with_url(places("plain")["output"], server[0]))
    assert "written only with --allow-remote" in refused()
    assert "plain.zarr cannot be written" in refused("--allow-remote", code=1)


def test_a_variable_is_replaced_everywhere_where_it_is_allowed(here, server):
    """By the remedy of the message."""
    url, asked = server
    run_file(collection={"source": f"{url}/${{SECRET}}.npy"})
    assert "give --allow-env SECRET, or write $${SECRET} for the text itself" in refused("--allow-remote")
    typed("run", "run.yaml", "--allow-remote", "--allow-env", "SECRET")
    assert f"/{SECRET}.npy" in asked
    text = "collection: {source: a, where: 'label=${SECRET}'}\nrun: {cluster_options: {queue: '${SECRET}'}}\n"
    Path("run.yaml").write_text(text)
    run = load_run("run.yaml", allow_env=["SECRET"])
    assert (run.collection.where, run.run.cluster_options) == (f"label={SECRET}", {"queue": SECRET})
    assert SECRET not in run.to_yaml() + run.to_yaml(complete=True)
    assert load_run("run.yaml", ["model.random_state=2"], allow_env=["SECRET"]).to_yaml().count("${SECRET}") == 2


def test_variables_stay_as_they_were_written(here, monkeypatch):
    """In what is printed and in the run directory, from where the run is carried out again."""
    monkeypatch.setenv("FOLDER", str(here))
    monkeypatch.setenv("K", "2")
    monkeypatch.setenv("SEED", "0")  # the default
    run_file(
        collection={"source": ["${FOLDER}/x.npy", "x.npy"], "duplicates": "all", "samples": [0, "1${K}"]},
        model={"n_components": "${K}", "random_state": "${SEED}"},
        run={"memory": "3${K} MiB"},
        output={"directory": "${FOLDER}/out"},
    )
    as_written = yaml.safe_load(Path("run.yaml").read_text())
    printed = yaml.safe_load(succeeded("run", "run.yaml", "--print-config"))
    assert printed["collection"].pop("sample_axes") == [1, 2]  # which position decided
    assert printed == as_written
    succeeded("run", "run.yaml", "-q")
    recorded = Path("out/config.yaml").read_text()
    assert str(here) not in recorded
    assert yaml.safe_load(recorded)["collection"]["source"] == ["${FOLDER}/x.npy", "x.npy"]
    for name in ("model", "run"):
        assert yaml.safe_load(recorded)[name].items() >= as_written[name].items()
    assert load_run("out/config.yaml") == load_run("run.yaml")
    monkeypatch.delenv("K")
    assert is_run_file("out/config.yaml")
    monkeypatch.setenv("K", "3")
    succeeded("run", "run.yaml", "-q", "--overwrite")
    assert len(streampca.load("out/model.zarr").explained_variance) == 3


def test_which_keys_take_variables():
    """All that take a path or a number, and no other: a new key says which it is."""
    keys = dict.fromkeys(("apply", *(key for name in SECTIONS for key in keys_of(name))), "pca")
    keys |= {f"model.{name}": kind for kind in KINDS for name in ("kind", *fields_of(kind_class(kind)))}
    taken = {key for key, kind in keys.items() if takes_variables(tuple(key.split(".")), kind)}
    paths = {
        "collection.source", "collection.labels", "collection.sample_weight", "collection.target", "apply",
        "prepare.mask", "model.graph", "update.model", "run.scratch", "run.metrics", "output.directory", "output.model",
        "output.scores", "output.images", "output.collection", "output.graph",
    }  # fmt: skip
    assert taken >= paths
    words = {"key", "where", "on_bad_file", "coordinates", "kind", "method", "cluster", "cluster_options", "metric",
             "kernel", "part"}  # fmt: skip
    assert not {key for key in taken if key.rpartition(".")[2] in words}
    others = {"prepare.scale", "collection.sel", "collection.select"}

    def annotation(key):
        section, _, name = key.partition(".")
        return hints_of(SECTIONS[section] if section in SECTIONS else kind_class(keys[key]))[name]

    numbers = {key for key in taken - paths - others if re.search(r"\bint\b|\bfloat\b", str(annotation(key)))}
    assert taken == paths | others | numbers


# -- options of batch systems, whose job scripts hold values unquoted

SHELL = ["$SECRET", "${SECRET}", "$(touch ran)", "`touch ran`", "a;touch ran", "a|b", "a&b", "a>b", "a b", "~+", "a=~",
         "~$SECRET", "{a,b}", "*", "?", "[a]", "a\nb", "'a'", '"a"', "\\$SECRET", "!x", "#x", "-x", "%(x)"]  # fmt: skip


@pytest.mark.parametrize("text", SHELL)
@pytest.mark.parametrize("name", sorted(set(OPTIONS) - {"cores", "processes", "memory", "resources"}))
def test_no_option_holds_what_a_shell_replaces(name, text):
    with pytest.raises(RequestError, match="as it goes to a shell"):
        checked_options({name: text})


@pytest.fixture
def sbatch(here, monkeypatch):
    """A stand-in for sbatch that has a shell carry out the job's script but for its last command, the worker."""
    Path("bin").mkdir()
    script = '#!/bin/bash\ncp "$1" seen.script; sed "s/^[^#].*/echo &/" "$1" | bash > seen.words; echo job 4711\n'
    for name, text in (("sbatch", script), ("scancel", "#!/bin/bash\n")):
        Path("bin", name).write_text(text)
        Path("bin", name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}/bin:/usr/bin:/bin")


@pytest.mark.slow
def test_the_words_of_a_job_are_those_of_the_run_file(sbatch, here, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    options = dict.fromkeys(FOLDERS, "~/made") | {"queue": "day", "account": "a-1", "memory": "800 MiB"}
    Path("made").mkdir()
    run_file(run={"cluster": "slurm", "workers": 1, "cluster_timeout": "1s", "cluster_options": options})
    said = typed("run", "run.yaml", "-q")
    assert "see what jobs 4711 wait for" in said.err
    script = Path("seen.script").read_text()
    assert f"--local-directory {here}/made" in script
    assert f"-e {here}/made/" in script
    assert not set("$`~") & set(script.partition("\n")[2])
    assert SECRET not in script + Path("seen.words").read_text()
    assert not (here / "~").exists()
