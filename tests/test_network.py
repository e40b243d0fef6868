"""Plans of passes that workers share: what is sent, how many spans and workers are worth having, and the time."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from shell import succeeded

import streampca
from streampca.accumulators import Gram, GramBlock, Scatter, ScatterBlock
from streampca.errors import RequestError
from streampca.machine import limit_cores
from streampca.planning.network import EFFICIENCY, NETWORK
from streampca.units import format_rate, parse_rate

# Samples, lengths, workers, options: a few of those of benchmarks/scaling.py, and with the smallest numbers of workers.
PROBLEMS = [
    (10**6, (28, 28), 1, {}),
    (10**5, (28, 28), 2, {}),
    (10**6, (28, 28), 1024, {}),
    (10**7, (28, 28), 32, {"network": "1Gbit"}),
    (10**6, (64, 64), 256, {}),
    (10**6, (8192,), 128, {"method": "covariance"}),
    (10**4, (512, 512), 16, {"method": "dual"}),
    (10**6, (256, 256), 64, {"method": "randomized", "k": 100}),
    (10**6, (1000, 1000), 64, {"method": "randomized", "k": 100}),
    (10**6, (64, 64), 16, {"method": "em", "missing": "em", "k": 10}),
]
LARGE = {"shape": (10**8, 64, 64), "dtype": "float32", "memory": "8 GiB"}


@pytest.fixture
def scaling(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return import_module("scaling")


@pytest.mark.parametrize(("samples", "lengths", "workers", "options"), PROBLEMS)
def test_passes_take_as_long_as_in_a_simulation_of_the_schedule(scaling, samples, lengths, workers, options):
    sharing = scaling.sharing_of(samples, lengths, max(workers, 2), options).of(workers)
    found = scaling.Simulation(sharing).run()
    assert 1 / scaling.WITHIN < sharing.seconds_a_pass / found.seconds < scaling.WITHIN
    assert found.tasks == pytest.approx(sharing.n_tasks, rel=0.3)
    assert found.vector_bytes == sharing.shared.vectors * (workers - 1)


def test_deaths_and_slow_workers_cost_time_and_nothing_else(scaling):
    sharing = scaling.sharing_of(10**7, (28, 28), 16, {})
    well = scaling.Simulation(sharing, trouble=scaling.Trouble(spread=0)).run()
    slow = scaling.Simulation(sharing, trouble=scaling.Trouble(slow_share=0.2, seed=1)).run()
    dying = scaling.Simulation(sharing, trouble=scaling.Trouble(deaths=200)).run()
    assert well.tasks == sharing.n_tasks
    assert slow.seconds > 1.2 * well.seconds
    assert (dying.tasks > well.tasks, dying.seconds > well.seconds) == (True, True)


def test_the_number_of_workers_that_a_plan_names_is_the_last_efficient_one():
    with limit_cores(1):
        plan = streampca.plan(**LARGE, workers=1024)
    sharing, most = plan.sharing, plan.to_json()["sharing"]["most_workers"]
    assert sharing.of(most).efficiency >= EFFICIENCY > sharing.of(most + 1).efficiency
    assert f"up to {most} worker" in " ".join(str(plan).split())
    with limit_cores(1):
        slower, faster = (streampca.plan(**LARGE, workers=1024, network=rate) for rate in ("1Gbit", "100Gbit"))
    assert slower.sharing.most_workers < most < faster.sharing.most_workers
    assert slower.seconds > plan.seconds > faster.seconds
    assert slower.spans == plan.spans == faster.spans  # as bits depend on them


def test_there_are_as_many_spans_as_workers_can_use():
    """Also where blocks are fewer; spans then end where storage chunks do, and cover all samples."""
    with limit_cores(1):
        plan = streampca.plan(**LARGE | {"shape": (6 * 10**5, 64, 64), "dtype": "uint16"}, workers=64)
    assert len(plan.spans) == 4 * 64 > -(-6 * 10**5 // plan.block_rows)
    assert (plan.spans[0].start, plan.spans[-1].stop) == (0, 6 * 10**5)
    small = streampca.plan(shape=(1000, 8, 8), workers=64)
    assert len(small.spans) == 1


@pytest.mark.parametrize("method", ["covariance", "dual", "randomized"])
def test_sums_are_planned_with_the_bytes_that_they_have(method):
    n, p, k = {"dual": (300, 2000, 5)}.get(method, (3000, 400, 5))
    model = streampca.PCA(k, method=method, precision="single")
    plan = streampca.plan(shape=(n, p), kind=model, workers=4, dtype="float32", memory="1 GiB")
    rows = np.random.default_rng(0).normal(size=(n, p)).astype("f4")
    if method == "covariance":
        accumulator = Scatter(p, precision="single", product_rows=512)
    elif method == "dual":
        accumulator = Gram(n, precision="single", product_features=500)
    elif plan.side == "features":
        accumulator = ScatterBlock(np.ones((p, plan.width)), np.zeros(p), precision="single", product_rows=512)
    else:
        accumulator = GramBlock(np.ones((n, plan.width)), precision="single", product_features=500)
    accumulator.update(rows)
    sent = {name: array.nbytes for name, array in accumulator.state().items()}
    size = sum(sent[name] for name in set(sent) - {*getattr(accumulator, "constants", ())})
    assert plan.shared.partial == pytest.approx(size, rel=0.05)


def test_a_command_says_what_python_does():
    words = ["--shape", "1000000x64x64", "-k", "20", "--memory", "8GiB", "--workers", "64", "--network", "25 Gbit/s"]
    said = json.loads(succeeded("plan", *words, "--json"))["sharing"]
    plan = streampca.plan(
        shape=(10**6, 64, 64), n_components=20, memory="8GiB", workers=64, network="25Gbit", output="model.zarr"
    )
    assert said == plan.to_json()["sharing"]
    assert (said["network"], said["network_assumed"]) == (25e9 / 8, False)
    assert "25 Gbit/s" in succeeded("plan", *words)
    assert "10 Gbit/s, as none is given by --network" in " ".join(succeeded("plan", *words[:-2]).split())


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10Gbit", NETWORK), ("10 Gb/s", NETWORK), ("10000Mbps", NETWORK), ("1.25GB/s", NETWORK), ("1KiB", 1024),
     ("8 bit", 1), (".5 Mbit", 62500)],
)  # fmt: skip
def test_rates_of_networks(text, rate):
    assert parse_rate(text) == rate
    assert parse_rate(format_rate(rate)) == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("text", ["10", "0Gbit", "fast", "10 Gbit/h", "-1Gbit", "1iB", "10g"])
def test_what_is_no_rate_of_a_network(text):
    with pytest.raises(RequestError, match="is not understood; write bits or bytes a second, such as 10Gbit"):
        parse_rate(text)
