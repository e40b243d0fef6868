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
from streampca.cli.config import _takes_variables, is_run_file, load_run, make_run
from streampca.cli.from_config import cluster_of
from streampca.cli.options import Run, field_of
from streampca.errors import ConfigError, RequestError
from streampca.execution.cluster_options import FOLDERS, OPTIONS, checked_options

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
    data = {"collection": {"source": "x.npy"}, "fit": {"n_components": 2}, "output": {"model": "m.zarr"}}
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


EXECUTIONS = {
    "address": "{{kind: dask, cluster: '{tcp}'}}",
    "address, workers": "{{kind: dask, cluster: '{tcp}', workers: 2}}",
    "address, no kind": "{{cluster: '{tcp}'}}",
    "large letters": "{{kind: dask, cluster: '{large}'}}",
    "tls": "{{kind: dask, cluster: 'tls://{host}'}}",
    "merged": "{{<<: {{kind: dask, cluster: '{tcp}'}}}}",
    "variable in it": "{{kind: dask, cluster: '{tcp}/${{SECRET}}'}}",
    "variable as host": "{{kind: dask, cluster: 'tcp://${{SECRET}}.example:1'}}",
    "variable as scheme": "{{kind: dask, cluster: '${{SCHEME}}//{host}'}}",
    "variable for all": "{{kind: dask, cluster: '${{SECRET}}'}}",
    "escaped variable": "{{kind: dask, cluster: '{tcp}$${{SECRET}}'}}",
    "no scheme": "{{kind: dask, cluster: '{host}'}}",
    "mapping": "{{kind: dask, cluster: {{address: '{tcp}'}}}}",
    "other key": "{{address: '{tcp}'}}",
    "list": "{{kind: dask, cluster: ['{tcp}']}}",
    "option": "{{kind: dask, cluster: slurm, workers: 1, options: {{scheduler: '{tcp}'}}}}",
    "scheduler options": "{{kind: dask, cluster: slurm, workers: 1, options: {{scheduler_options: {{a: '{tcp}'}}}}}}",
}


def test_values_of_other_tags_are_refused_wherever_they_stand(here):
    """As bytes, sets or ordered mappings they would be checked as no text, and validated as one."""

    def as_bytes(text):
        return "!!binary " + base64.b64encode(text.encode()).decode()

    address, url = as_bytes("tcp://127.0.0.1:1"), "http://127.0.0.1:1/x.npy"
    rows = {
        "execution": [
            f"{{kind: dask, cluster: {address}}}",
            f"{{kind: dask, cluster: slurm, workers: 1, options: {{{as_bytes('python')}: /tmp/x}}}}",
            f"{{kind: dask, cluster: slurm, workers: 1, options: {{? {as_bytes('job_script_prologue')} : [ls]}}}}",
            f"{{kind: dask, cluster: slurm, workers: 1, options: {{queue: {as_bytes('$(ls)')}}}}}",
        ],
        "collection": [
            f"{{source: {as_bytes(url)}}}",
            f"{{source: [{as_bytes(url)}]}}",
            f"{{source: !!set {{'{url}'}}}}",
            f"{{source: x.npy, labels: !!omap [a: '{url}']}}",
            f"{{source: x.npy, labels: !!pairs [a: '{url}']}}",
            f"{{source: &u {as_bytes(url)}, labels: *u}}",
        ],
        "model": [as_bytes(url), "!!python/name:os.system", "!own {a: 1}"],
    }
    for section, values in rows.items():
        for value in values:
            rest = {"collection": "{source: x.npy}", "fit": "{n_components: 2}", "output": "{model: m.zarr}"}
            written = {**rest, section: value}
            Path("run.yaml").write_text("".join(f"{name}: {text}\n" for name, text in written.items()))
            assert " has a value with the tag !" in refused(), value
    Path("run.yaml").write_text(
        "collection: {source: !!str x.npy}\nfit: {n_components: !!int 2}\noutput: {model: m.zarr}\n"
    )
    succeeded("run", "run.yaml", "-q")


@pytest.mark.parametrize("name", EXECUTIONS)
@pytest.mark.parametrize(
    "words", [(), ("--dry-run",), ("--print-config",), ("--allow-env", "SCHEME", "--allow-remote")]
)
def test_a_run_file_connects_to_no_scheduler(here, hostile, name, words):
    address, folder = hostile
    run_file()
    host = address.removeprefix("tcp://")
    execution = EXECUTIONS[name].format(tcp=address, large=address.upper(), host=host)
    with open("run.yaml", "a") as file:
        file.write(f"execution: {execution}\n")
    refused(*words)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(("key", "form"), [
    ("cluster", lambda address: address),
    ("cluster", lambda address: [address]),
    ("cluster", lambda address: {"address": address}),
    ("address", lambda address: address),
])  # fmt: skip
def test_addresses_are_refused_with_a_remedy_that_works(here, hostile, key, form):
    address, _ = hostile
    run_file(execution={key: form(address)})
    line = refused()
    assert line == (
        f"run file run.yaml: execution.{key} names a scheduler's address, which a run file cannot choose; if you trust "
        "what runs there, write execution: {kind: dask}, and set DASK_SCHEDULER_ADDRESS or give --set "
        "execution.cluster=..."
    )
    run_file(execution={"kind": "dask"})
    run = load_run("run.yaml", [f"execution.cluster={address}"])
    assert cluster_of(run).cluster == address
    with dask.config.set(scheduler_address=address):
        assert cluster_of(load_run("run.yaml")).cluster == address
    with dask.config.set(scheduler_address="10.0.0.1:8786"):
        assert cluster_of(load_run("run.yaml")).cluster == "tcp://10.0.0.1:8786"
    with pytest.raises(ConfigError, match=r"a scheduler that dask's configuration names \(DASK_SCHEDULER_ADDRESS\)"):
        cluster_of(load_run("run.yaml"))


@pytest.mark.slow
def test_the_scheduler_of_dasks_configuration_is_used_at_every_door(here):
    from distributed import LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        dask.config.set(scheduler_address=cluster.scheduler_address),
    ):
        streampca.fit("x.npy", n_components=2, cluster="configured", output="python.zarr")
        succeeded("fit", "x.npy", "-k", 2, "--cluster", "configured", "-o", "command.zarr", "-q")
        run_file(execution={"kind": "dask"}, output={"model": "file.zarr"})
        succeeded("run", "run.yaml", "-q")
    plans = [streampca.load_model(f"{name}.zarr").provenance["plan"] for name in ("python", "command", "file")]
    assert [plan["workers"] for plan in plans] == [plans[0]["workers"]] * 3
    assert plans[0]["workers"] > 1, "others may come"


def test_records_of_a_run_leave_addresses_out():
    options = {"collection": {"source": "a"}, "execution": {"kind": "dask", "cluster": "tcp://a:1", "workers": 3}}
    for complete in (False, True):
        text = make_run(options).to_yaml(complete=complete)
        assert "://" not in text
        found = yaml.safe_load(text)["execution"]
        assert {"kind": "dask", "cluster": "configured", "workers": 3}.items() <= found.items(), "what is left is true"


# -- secrets of the environment


def places(text):
    """Run files that hold a text where something could be sent, or told to others, by name."""
    batch = {"kind": "dask", "cluster": "slurm", "workers": 1}
    options = {name: batch | {"options": {name: text}} for name in OPTIONS if name not in ("cores", "processes")}
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
        "weights of samples": {"fit": {"sample_weight": f"URL/{text}"}},
        "target": {"fit": {"kind": "discriminant", "target": f"URL/{text}"}},
        "actions": {"embed": {"kind": "action-respecting-embedding", "actions": f"URL/{text}"}, "fit": {}},
        "graph": {"embed": {"kind": "isomap", "graph": f"URL/{text}"}, "fit": {}},
        "model": {"model": f"URL/{text}", "output": {"scores": "s.npy"}},
        "key": {"collection": {"source": "x.npy", "key": text}},
        "condition": {"collection": {"source": "x.npy", "where": text}},
        "cluster": {"execution": {"kind": "dask", "cluster": text}},
        **{f"option {name}": {"execution": execution} for name, execution in options.items()},
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
        assert "replaced in local paths and numbers only; if what is run may tell" in line


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


def test_a_variable_is_replaced_everywhere_where_it_is_allowed(here, server):
    """By the remedy of the message."""
    url, asked = server
    run_file(collection={"source": f"{url}/${{SECRET}}.npy"})
    assert "give --allow-env SECRET, or write $${SECRET} for the text itself" in refused("--allow-remote")
    typed("run", "run.yaml", "--allow-remote", "--allow-env", "SECRET")
    assert f"/{SECRET}.npy" in asked
    text = "collection: {source: a, where: 'label=${SECRET}'}\nexecution: {options: {queue: '${SECRET}'}}\n"
    Path("run.yaml").write_text(text)
    run = load_run("run.yaml", allow_env=["SECRET"])
    assert (run.collection.where, run.execution.options) == (f"label={SECRET}", {"queue": SECRET})
    assert SECRET not in run.to_yaml() + run.to_yaml(complete=True)
    assert load_run("run.yaml", ["fit.seed=2"], allow_env=["SECRET"]).to_yaml().count("${SECRET}") == 2


def test_variables_stay_as_they_were_written(here, monkeypatch):
    """In what is printed and in the run directory, from where the run is carried out again."""
    monkeypatch.setenv("FOLDER", str(here))
    monkeypatch.setenv("K", "2")
    monkeypatch.setenv("SEED", "0")  # the default
    run_file(
        collection={"source": ["${FOLDER}/x.npy", "x.npy"], "duplicates": "all", "samples": [0, "1${K}"]},
        fit={"n_components": "${K}", "seed": "${SEED}", "memory": "3${K} MiB"},
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
    assert yaml.safe_load(recorded)["fit"] == {**yaml.safe_load(recorded)["fit"], **as_written["fit"]}
    assert load_run("out/config.yaml") == load_run("run.yaml")
    monkeypatch.delenv("K")
    assert is_run_file("out/config.yaml")
    monkeypatch.setenv("K", "3")
    succeeded("run", "run.yaml", "-q", "--overwrite")
    assert len(streampca.load_model("out/model.zarr").explained_variance) == 3


def test_which_keys_take_variables(here):
    """All that take a path or a number, and no other: a new key says which it is."""
    taken = set()
    for name, section in Run.model_fields.items():
        inner = getattr(section.annotation, "model_fields", None)
        for key in [name] if inner is None else [f"{name}.{field}" for field in inner]:
            if _takes_variables(tuple(key.split("."))):
                taken.add(key)
    paths = {
        "collection.source", "collection.labels", "model", "prepare.mask", "fit.target", "fit.sample_weight",
        "fit.update", "fit.scratch", "embed.graph", "embed.actions", "output.directory", "output.model",
        "output.scores", "output.images", "output.collection", "output.graph",
    }  # fmt: skip
    assert taken >= paths
    words = {"key", "where", "on_bad_file", "coordinates", "kind", "method", "cluster", "options", "metric", "kernel"}
    assert not {key for key in taken if key.rpartition(".")[2] in words}
    others = {"prepare.scale", "prepare.weights", "collection.sel", "collection.select"}
    numbers = {key for key in taken - paths - others if re.search(r"\bint\b|\bfloat\b", str(field_of(key).annotation))}
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
    run_file(execution={"kind": "dask", "cluster": "slurm", "workers": 1, "timeout": "1s", "options": options})
    said = typed("run", "run.yaml", "-q")
    assert "see what jobs 4711 wait for" in said.err
    script = Path("seen.script").read_text()
    assert f"--local-directory {here}/made" in script
    assert f"-e {here}/made/" in script
    assert not set("$`~") & set(script.partition("\n")[2])
    assert SECRET not in script + Path("seen.words").read_text()
    assert not (here / "~").exists()
