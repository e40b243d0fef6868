"""Parts of a collection, fitted apart and merged: the answer is that of the whole, or one line says what is missing."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import by_options
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from shell import diagonal, python, refused, succeeded

import streampca
from streampca import Preparation
from streampca.errors import BudgetError, ModelError, OutputError, RequestError
from streampca.events import Planned, Warned
from streampca.kinds.run import Part, part_of
from streampca.planning.blocks import blocks_of, span_of_part, spans_of

N, OF = 203, 3


def images(dtype="u1", n=N, seed=0):
    """Images of some patterns, whole numbers or not; not in the middle of the range, and drifting."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(6, 9 * 8)) * 20 * 0.7 ** np.arange(6)[:, None]
    x = rng.normal(size=(n, 6)) @ patterns + rng.normal(size=(n, 72)) + 90 + np.linspace(0, 40, n)[:, None]
    return x.reshape(n, 9, 8).clip(0, 255).astype(dtype)


def fitted_parts(x, of=OF, **options):
    return [by_options.fit(x, part=(number, of), **options) for number in range(1, of + 1)]


def assert_agree(merged, whole, rtol=1e-10):
    """Two models of the same data: variances, means, components up to rounding, and what the models say of the data."""
    scale = whole.explained_variance[0]
    np.testing.assert_allclose(merged.explained_variance, whole.explained_variance, rtol=0, atol=rtol * scale)
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=rtol, atol=rtol)
    assert merged.total_variance == pytest.approx(whole.total_variance, rel=rtol)
    assert (merged.n_samples, merged.total_weight is None) == (whole.n_samples, whole.total_weight is None)
    assert (merged.residual_bound < 1e-4).all()
    for key in ("source", "fingerprint", "sample_weight"):
        assert merged.provenance[key] == whole.provenance[key]
    assert merged.provenance["plan"]["problem"] == whole.provenance["plan"]["problem"]


# -- which samples


@given(n=st.integers(2, 500), of=st.integers(1, 60), rows=st.integers(1, 70), count=st.integers(1, 6))
def test_parts_and_their_spans_cover_all_once(n, of, rows, count):
    spans = [span_of_part(Part(number, of), n) for number in range(1, of + 1)]
    assert [sample for span in spans for sample in range(*span)] == [*range(n)]
    for number in range(1, of + 1):
        part = span_of_part(Part(number, of), n)
        spans = spans_of(part.stop, count, rows, start=part.start)
        assert [sample for span in spans for sample in range(*span)] == [*range(*part)]
        cut = [block for span in spans for block in blocks_of(span, rows)]
        assert cut == [*blocks_of(part, rows)] or part.size == 0


@pytest.mark.parametrize("given", ["3", "3/", "a/b", (3,), "0/4", "5/4", "1/0", "-1/4", "1/2/3"])
def test_what_is_no_part(given):
    with pytest.raises(RequestError, match=r"part .*(16|does not exist)"):
        part_of(given)


# -- exact


@pytest.mark.parametrize("precision", ["single", "double"])
def test_of_whole_numbers_all_bits_are_equal(tmp_path, precision):
    """Written, and given in any order."""
    x = images()
    whole = streampca.fit(x, streampca.PCA(7, precision=precision))
    first, *others = fitted_parts(x, n_components=7, precision=precision)
    first.save(tmp_path / "first.zarr")
    merged = streampca.merge([*others, tmp_path / "first.zarr"], output=tmp_path / "model.zarr")
    loaded = streampca.load(tmp_path / "model.zarr", statistic=True)
    for model in (merged, loaded):
        assert model.provenance["exact_sums"]
        for name in ("explained_variance", "components", "mean", "eigenvalues"):
            np.testing.assert_array_equal(getattr(model, name), getattr(whole, name))
        assert_agree(model, whole)
    np.testing.assert_array_equal(np.triu(loaded.statistic.matrix()), np.triu(whole.statistic.matrix()))


@pytest.mark.parametrize(
    ("dtype", "precision", "rtol"), [("f8", "auto", 1e-10), ("f4", "double", 1e-10), ("f4", "single", 1e-6)]
)
def test_of_fractions_to_rounding(dtype, precision, rtol):
    x = images(dtype) + 0.1
    options = {"n_components": 0.9, "precision": precision, "random_state": 3}
    whole = by_options.fit(x, **options)
    merged = streampca.merge(reversed(fitted_parts(x, **options)))
    assert_agree(merged, whole, rtol)
    assert merged.n_components == whole.n_components


def test_weights_are_those_of_the_whole():
    x, weights = images("f8"), np.random.default_rng(1).integers(0, 4, N) / 2
    weights[60:140] = 0  # a whole part among them
    whole = streampca.fit(x, n_components=5, sample_weight=weights)
    parts = fitted_parts(x, n_components=5, sample_weight=weights)
    merged = streampca.merge(parts)
    assert_agree(merged, whole)
    assert merged.total_weight == pytest.approx(weights.sum())
    copies = np.repeat(x, (2 * weights).astype(int), axis=0)
    direct = np.linalg.svd((copies - copies.mean(0)).reshape(len(copies), -1), compute_uv=False)[:5] ** 2 / 2
    np.testing.assert_allclose(merged.explained_variance, direct / (weights.sum() - 1), rtol=1e-10)


def test_preparation_is_found_in_the_whole(tmp_path):
    """Pixels missing in one part only are left out in all."""
    x = images("f8", n=60)
    x[:, 0, :3] = np.nan
    x[50:, 4:6, 4:6] = np.nan
    preparation = Preparation(mask="valid", scale=0.5, normalize="mean")
    options = {"n_components": 4, "preparation": preparation, "method": "covariance"}
    whole = by_options.fit(x, **options)
    first, second, third = fitted_parts(x, **options)
    first.save(tmp_path / "1.zarr")
    np.testing.assert_array_equal(streampca.load(tmp_path / "1.zarr").mask, whole.mask)
    assert not first.mask[4, 4]
    merged = streampca.merge([third, tmp_path / "1.zarr", second])
    assert_agree(merged, whole)
    np.testing.assert_array_equal(np.isnan(merged.components), np.isnan(whole.components))
    np.testing.assert_allclose(abs(merged.transform(x)), abs(whole.transform(x)), atol=1e-9)


def test_a_part_is_a_model_of_its_own_samples(tmp_path, monkeypatch):
    """Its statistic is always stored, whatever its size."""
    x = images("f8")
    part = streampca.fit(x, n_components=30, part="3/16")
    rows = x[N * 2 // 16 : N * 3 // 16]
    alone = streampca.fit(rows, streampca.PCA(len(rows) - 1, method="covariance"))
    assert part.provenance["part"] == [3, 16]
    monkeypatch.setattr(streampca.models.pca, "STATE_LIMIT", 8)
    for model, kept in ((part, True), (alone, False)):
        model.save(tmp_path / "m.zarr", overwrite=True)
        assert (streampca.load(tmp_path / "m.zarr", statistic=True).statistic is not None) == kept
    assert part.provenance["n_samples"] == N
    np.testing.assert_allclose(part.explained_variance, alone.explained_variance, rtol=1e-10)
    np.testing.assert_allclose(part.mean, alone.mean)


@pytest.mark.parametrize("k", [3, 0.9, "elbow", "mp", "mle", None])
def test_every_way_to_ask_for_components(k):
    """Asked of the whole: parts of fewer samples than features have fewer."""
    x = images()
    whole = streampca.fit(x, streampca.PCA(k, method="covariance"))
    merged = streampca.merge(fitted_parts(x, 2, n_components=k))
    np.testing.assert_array_equal(merged.explained_variance, whole.explained_variance)


def test_a_part_without_variance_is_no_obstacle(tmp_path):
    x = images()
    x[60:140] = 7  # a lamp was off
    whole = streampca.fit(x, n_components=3)
    first, second, third = fitted_parts(x, n_components=3)
    second.save(tmp_path / "dark.zarr")
    dark = streampca.load(tmp_path / "dark.zarr")
    assert (dark.n_components, dark.total_variance) == (0, 0.0)
    merged = streampca.merge([first, tmp_path / "dark.zarr", third])
    np.testing.assert_array_equal(merged.explained_variance, whole.explained_variance)
    with pytest.raises(streampca.errors.DataError, match="no variance"):
        streampca.merge(fitted_parts(np.full((20, 4), 3.0), 2, method="covariance"))


# -- several collections


def test_collections_that_came_later(tmp_path):
    x = images()
    models = []
    for name, rows in (("a", x[:90]), ("b", x[90:150]), ("c", x[150:])):
        np.save(tmp_path / f"{name}.npy", rows)
        models.append(streampca.fit(tmp_path / f"{name}.npy", streampca.PCA(5, method="covariance")))
    two = streampca.merge(models[:2], output=tmp_path / "ab.zarr")
    three = streampca.merge([tmp_path / "ab.zarr", models[2]])
    whole = streampca.fit(x, n_components=5)
    np.testing.assert_array_equal(three.explained_variance, whole.explained_variance)
    assert (two.n_samples, three.n_samples) == (150, N)
    assert [entry["n_samples"] for entry in three.provenance["merged"]] == [90, 60, 53]
    assert [Path(entry["source"]).name for entry in three.provenance["merged"]] == ["a.npy", "b.npy", "c.npy"]
    json.dumps(three.summary())
    with pytest.raises(ModelError, match=r"a\.npy is in two of the models"):
        streampca.merge([tmp_path / "ab.zarr", models[0]])


def test_shards_in_any_order(monkeypatch):
    """Nothing is declared beforehand: the bits are those of one fit, whatever precision each shard was planned with."""
    monkeypatch.setattr("streampca.planning.candidate_sizes.SMALL_PRODUCT", 400 * 72**2)
    x = images(n=1200)
    cuts = (0, 150, 500, 506, 1200)
    shards = [streampca.fit(x[a:b], streampca.PCA(3, method="covariance")) for a, b in itertools.pairwise(cuts)]
    whole = streampca.fit(x, streampca.PCA(3, method="covariance"))
    order = (3, 1, 0, 2)
    merged = streampca.merge([shards[number] for number in order])
    for name in ("components", "explained_variance", "mean"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name), err_msg=name)
    fractions = [streampca.fit(part, streampca.PCA(3, method="covariance")) for part in np.split(x / 7, cuts[1:-1])]
    again = streampca.merge([fractions[number] for number in order])
    exact = streampca.fit(x / 7, streampca.PCA(3, method="covariance"))
    np.testing.assert_allclose(again.explained_variance, exact.explained_variance, rtol=1e-10)
    np.testing.assert_allclose(again.components, exact.components, atol=1e-10)


def test_a_model_merges_others_and_asks_for_components(tmp_path):
    x = images()
    one, two = (streampca.fit(part, streampca.PCA(k, method="covariance")) for part, k in ((x[:90], 4), (x[90:], 5)))
    one.save(tmp_path / "one.zarr")
    two.save(tmp_path / "two.zarr")
    whole = streampca.fit(x, streampca.PCA(6, method="covariance"))
    loaded = streampca.load(tmp_path / "one.zarr")  # its statistic is on disk
    for found in (one.merge(two, n_components=6), loaded.merge(tmp_path / "two.zarr", n_components=6)):
        np.testing.assert_array_equal(found.components, whole.components)
    line = refused("merge", tmp_path / "one.zarr", tmp_path / "two.zarr", "-o", tmp_path / "both.zarr", "-q")
    assert re.search(r"n_components 5, and \S+ with 4; .* or give -k for all\.$", line)
    succeeded("merge", tmp_path / "one.zarr", tmp_path / "two.zarr", "-o", tmp_path / "both.zarr", "-q", "-k", 6)
    np.testing.assert_array_equal(streampca.load(tmp_path / "both.zarr").components, whole.components)
    succeeded("merge", tmp_path / "one.zarr", tmp_path / "two.zarr", "-o", tmp_path / "all.zarr", "-q", "-k", "all")
    every = streampca.fit(x, streampca.PCA(None, method="covariance")).n_components
    assert streampca.load(tmp_path / "all.zarr").n_components == every > 6


def test_samples_that_fade_are_not_merged():
    models = [streampca.fit(part, streampca.PCA(4, half_life=20)) for part in (images()[:90], images()[90:])]
    with pytest.raises(ModelError, match=r"was fitted with half_life=20, .* add those by streampca\.update"):
        streampca.merge(models)


# -- models without a scatter matrix


def misses(model, x):
    """How far each pair is from an eigenpair, and each variance from that of its rank, over what the model allows."""
    covariance = np.cov(x.reshape(len(x), -1).T.astype(float))
    values, vectors = model.explained_variance, model.subspace.components
    residuals = np.linalg.norm(covariance @ vectors.T - vectors.T * values, axis=0)
    exact = np.linalg.eigvalsh(covariance)[::-1][: len(values)]
    return np.maximum(residuals, np.abs(exact - values)) / (values * model.residual_bound)


@pytest.mark.parametrize(
    ("methods", "k"),
    diagonal([("dual", "dual"), ("randomized", "covariance"), ("dual", "randomized", "dual")], [1, 4, 12]),
)
def test_components_stand_for_a_statistic_within_the_bound(methods, k):
    x = images(n=240).astype(float)
    models = [
        streampca.fit(part, streampca.PCA(k, method=method, random_state=number))
        for number, (part, method) in enumerate(zip(np.array_split(x, len(methods)), methods, strict=True))
    ]
    events = []
    merged = streampca.merge(models, approximate=True, listener=events.append)
    assert (misses(merged, x) <= 1).all()
    assert np.isfinite(merged.residual_bound).all()
    np.testing.assert_allclose(merged.mean, x.mean(axis=0), rtol=1e-6)
    assert merged.total_variance == pytest.approx(x.reshape(240, -1).var(axis=0, ddof=1).sum(), rel=1e-6)
    assert merged.n_samples == 240
    said = [event.message for event in events if isinstance(event, Warned)]
    assert len(said) == 1
    assert "were merged by" in said[0]
    more = streampca.merge([merged, streampca.fit(x[:60] + 5, streampca.PCA(k, method="dual"))], approximate=True)
    assert (misses(more, np.concatenate([x, x[:60] + 5])) <= 1).all()
    if k == 12:  # all patterns are in the components
        assert merged.residual_bound[0] < 0.01


def test_models_with_all_their_components_lose_nothing():
    """Not even of samples far from zero, whose means are rounded."""
    x = np.random.default_rng(5).normal(size=(120, 20, 20)) + 1e4
    halves = [streampca.fit(half, streampca.PCA(59, method="dual", precision="double")) for half in np.split(x, 2)]
    merged = streampca.merge(halves, approximate=True, n_components=5)
    assert (misses(merged, x) <= 1).all()
    assert merged.error_bound.max() < 1e-7
    rows = x.reshape(120, -1) - x.reshape(120, -1).mean(axis=0)
    true = np.linalg.svd(rows, compute_uv=False)[:5] ** 2 / 119
    np.testing.assert_allclose(merged.explained_variance, true, rtol=1e-9)


def test_a_model_without_bounds_is_not_merged():
    x = images(n=120)
    one, two = (streampca.fit(part, streampca.PCA(3, method="dual")) for part in (x[:60], x[60:]))
    unknown = replace(two, residual_bound=np.full(3, np.nan))
    with pytest.raises(ModelError, match=r"^the model has components without an error bound"):
        one.merge(unknown, approximate=True)


def test_sketches_add(tmp_path):
    rng = np.random.default_rng(4)
    x = (rng.normal(size=(600, 20)) * 0.8 ** np.arange(20)) @ rng.normal(size=(20, 1200)) + 3
    parts, sketched = np.split(x, 3), []
    for number, part in enumerate(parts):
        estimator = streampca.PCA(5, run=streampca.Run(memory="19 MiB" if number else "20 MiB")).partial_fit(part)
        sketched.append(estimator.model_)
    assert {model.provenance["plan"]["method"] for model in sketched} == {"frequent directions"}
    sketched[0].save(tmp_path / "first.zarr")
    merged = streampca.merge([tmp_path / "first.zarr", *sketched[1:]], memory="24 MiB")
    assert (misses(merged, x) <= 1).all()
    exact = streampca.fit(parts[0], streampca.PCA(5, method="covariance"))
    with pytest.raises(ModelError, match=r"keeps its scatter matrix, and .* a sketch.*approximate=True"):
        streampca.merge([exact, sketched[1]])
    both = streampca.merge([exact, sketched[1]], approximate=True)
    assert (misses(both, np.concatenate(parts[:2])) <= 1).all()


# -- refusals, each followed by its remedy


@pytest.fixture(scope="module")
def fitted_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    with contextlib.chdir(folder):
        np.save("x.npy", images())
        np.save("y.npy", images(seed=1))
        for number in range(1, 4):
            fit_part(number)
    return folder


@pytest.fixture
def parts(fitted_once, tmp_path, monkeypatch):
    """Three parts of a collection in the working folder."""
    shutil.copytree(fitted_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return [f"part{number}.zarr" for number in range(1, 4)]


def fit_part(number, *options, source="x.npy", name=None):
    """Fit a part at the command line, where the last of an option counts."""
    name = name or f"part{number}.zarr"
    succeeded("fit", source, "-k", 5, "--part", f"{number}/3", "-o", name, "-q", *options)
    return name


def merge_all(*names):
    succeeded("merge", *(names or ["part?.zarr"]), "-o", "model.zarr", "-q")
    np.testing.assert_array_equal(
        streampca.load("model.zarr").explained_variance,
        streampca.fit("x.npy", n_components=5).explained_variance,
    )


def test_command_line_round_trip(parts):
    told = succeeded("fit", "x.npy", "-k", 5, "--part", "3/3", "-o", "third.zarr")
    assert "next, with all 3 parts: streampca merge" in told
    assert "part 3 of 3 of x.npy" in " ".join(succeeded("inspect", "third.zarr").split())
    config = succeeded("fit", "x.npy", "--part", "2/3", "--scale", 0.5, "-o", "z.zarr", "--print-config")
    assert "part: 2/3" in config
    assert "scale: 0.5" in config
    told = succeeded("merge", "part2.zarr", "third.zarr", "part1.zarr", "-o", "model.zarr")
    assert f"of the variance of {N} samples" in told
    assert "wrote model.zarr" in told
    assert "part" not in succeeded("inspect", "model.zarr")
    assert "merge" in succeeded("--help")


def test_a_part_that_is_missing(parts):
    line = refused("merge", "part1.zarr", "-o", "model.zarr", "-q")
    assert "part 2/3 is missing, and 1 more" in line
    asked = re.search(r"--part (\d)/3", line)[1]
    assert not Path("model.zarr").exists()
    again = ["part1.zarr", "part3.zarr", fit_part(asked, name="again.zarr")]
    line = refused("merge", *parts, "again.zarr", "-o", "model.zarr", "-q")
    assert "part 2/3 is given twice, by part2.zarr and again.zarr" in line
    merge_all(*again)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n_components": 4}, "n_components 4, and part1.zarr with 5"),
        ({"random_state": 1}, "random_state 1, and part1.zarr with 0"),
        ({"precision": "single"}, "precision 'single', and part1.zarr with 'double'"),
        ({"preparation": Preparation(bin=2)}, "bin 2, and part1.zarr with 1"),
        ({"preparation": Preparation(scale=0.5)}, "scale 0.5, and part1.zarr with None"),
        ({"sample_weight": np.arange(N)}, "sample_weight"),
        ({"samples": slice(0, 202)}, "n_samples 202, and part1.zarr with 203"),
        ({"part": "3/5"}, "parts 5, and part1.zarr with 3"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_parts_that_were_asked_for_something_else(parts, options, says):
    other = by_options.fit("x.npy", **{"n_components": 5, "part": "3/3", **options})
    with pytest.raises(ModelError, match=f"model 3 was fitted with .*{says}"):
        streampca.merge([*parts[:2], other])


@pytest.mark.parametrize("count", ["foo", 0, -1, 2.5, 1.0, True])
def test_a_number_of_components_is_checked(parts, count):
    with pytest.raises(RequestError, match="n_components="):
        streampca.merge(parts, n_components=count)


def test_parts_of_other_data(parts):
    def third(source):
        return streampca.fit(source, n_components=5, part="3/3")

    with pytest.raises(ModelError, match=r"source 'y.npy', and part1.zarr with 'x.npy'"):
        streampca.merge([*parts[:2], third("y.npy")])
    shutil.copy("y.npy", "x.npy")  # another file of the same name
    with pytest.raises(ModelError, match="with fingerprint"):
        streampca.merge([*parts[:2], third("x.npy")])
    merged, whole = streampca.merge(fitted_parts("x.npy", n_components=5)), streampca.fit("y.npy", n_components=5)
    np.testing.assert_array_equal(merged.explained_variance, whole.explained_variance)


def test_a_model_that_is_no_part(parts):
    succeeded("fit", "x.npy", "-k", 5, "-o", "whole.zarr", "-q")
    line = refused("merge", *parts, "whole.zarr", "-o", "model.zarr", "-q")
    assert "whole.zarr is of a whole collection, and part1.zarr is part 1/3; leave one of them out" in line
    succeeded("fit", "x.npy", "-k", 5, "-o", "dual.zarr", "--method", "dual", "-q")
    line = refused("merge", "dual.zarr", "whole.zarr", "-o", "model.zarr", "-q")
    remedy = re.search(r"--method \w+", line)[0].split()
    succeeded("fit", "y.npy", "-k", 5, "-o", "dual.zarr", *remedy, "--overwrite", "-q")
    succeeded("merge", "dual.zarr", "whole.zarr", "-o", "model.zarr", "-q")
    succeeded("fit", "y.npy", "-k", 5, "-o", "dual.zarr", "--method", "dual", "--overwrite", "-q")
    told = succeeded("merge", "dual.zarr", "whole.zarr", "-o", "near.zarr", *re.findall(r"--approximate", line))
    assert f"of the variance of {2 * N} samples" in told


def files_of(array):
    return sorted(path for path in Path(array).rglob("*") if path.is_file() and path.name != "zarr.json")


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(("array", "harm"), [("scatter", flip), ("centre", Path.unlink)])
def test_a_damaged_state(parts, array, harm):
    """A bit or a whole file: never taken for an answer. Zarr keeps checksums, whoever reads."""
    shutil.copytree("part2.zarr", "damaged.zarr")
    harm(*files_of(f"damaged.zarr/state/{array}"))
    line = refused("merge", parts[0], "damaged.zarr", parts[2], "-o", "model.zarr", "-q")
    assert re.search(r"damaged.zarr.*damaged.*Fit it again\.", line)
    if harm is flip:
        with pytest.raises(ValueError, match="checksum"):
            zarr.open_group("damaged.zarr", mode="r")["state/scatter"][...]
        return
    shutil.rmtree("part2.zarr/state")
    assert "part2.zarr" in refused("merge", *parts, "-o", "model.zarr", "-q")
    fit_part(2, "--overwrite")
    merge_all()


def test_methods_that_have_no_parts(parts):
    for method in ("dual", "randomized"):
        line = refused("fit", "x.npy", "-k", 5, "--part", "1/4", "--method", method, "-o", "p.zarr", code=2)
        assert f"method '{method}' leaves no sum" in line
        assert "'covariance'" in line


def test_auto_plans_covariance_for_parts():
    """Also where n x n would be cheaper; what does not fit is refused with a budget that does."""
    x = np.random.default_rng(0).normal(size=(40, 2500)).astype("f4")
    assert streampca.plan(x, n_components=3).method == "dual"
    with pytest.raises(BudgetError, match="Set memory to at least") as error:
        streampca.fit(x, n_components=3, part="1/2", memory="48MiB")
    memory = re.search(r"at least (\w+)", str(error.value))[1]
    assert streampca.fit(x, n_components=3, part="1/2", memory=memory).provenance["plan"]["method"] == "covariance"


def test_more_parts_than_pairs_of_samples(parts):
    line = refused("fit", "x.npy", "-k", 5, "--part", "1/150", "-o", "p.zarr", code=2)
    most = re.search(r"at most (\d+) parts", line)[1]
    succeeded("fit", "x.npy", "-k", 5, "--part", f"1/{most}", "-o", "p.zarr", "-q")
    assert "4/3 does not exist" in refused("fit", "x.npy", "--part", "4/3", "-o", "p.zarr", code=2)


def test_outputs_in_the_way(parts):
    shutil.copytree("part1.zarr", "model.zarr")
    assert "exists already" in refused("merge", *parts, "-o", "model.zarr", "-q")
    merge_all(*parts, "--overwrite")
    assert "one of the models" in refused("merge", *parts, "-o", "part2.zarr", "--overwrite", "-q")
    with pytest.raises(ModelError, match=r"none\*\.zarr matches no model"):
        streampca.merge("none*.zarr")
    Path("notes").mkdir()
    Path("notes/kept.txt").touch()
    with pytest.raises(OutputError, match="exists"):
        streampca.merge(parts, output="notes")
    with pytest.raises(RequestError, match="nothing to merge"):
        streampca.merge([])


def test_a_part_is_not_applied_nor_taken_for_another(parts):
    Path("run.yaml").write_text(
        "collection: {source: x.npy}\nrun: {part: 3/4}\noutput: {scores: s.npy, directory: out}\n"
    )
    assert "run.part 3/4 makes the model of a part only" in refused("run", "run.yaml", code=2)
    succeeded("run", "run.yaml", "--set", "output.scores=null", "-q")
    assert streampca.load("out/model.zarr").provenance["part"] == [3, 4]
    assert "part" in refused("run", "run.yaml", "--set", "output.scores=null", "--set", "run.part=2/4")


# -- memory


def test_a_budget_that_is_too_small_names_one_that_is_enough():
    x = np.random.default_rng(0).normal(size=(30, 400))
    parts = fitted_parts(x, 2, n_components=3)
    with pytest.raises(BudgetError, match="merging needs") as error:
        streampca.merge(parts, memory="8MiB")
    memory = re.search(r"at least (\w+)", str(error.value))[1]
    assert streampca.merge(parts, memory=memory).n_samples == 30


PEAK = """
import streampca
from streampca.events import Planned

estimates = []
note = lambda e: isinstance(e, Planned) and estimates.append(e.plan.memory_estimate.total)
model = streampca.merge("part*.zarr", listener=note)
print(model.provenance["peak_bytes"] or 0, *estimates)
"""


@pytest.mark.slow
def test_two_statistics_at_a_time(tmp_path):
    """The peak of a fresh process is within the memory estimate, which holds two of the three matrices."""
    p = 2100
    x = np.random.default_rng(0).normal(size=(60, p)) * 0.9 ** np.arange(p)
    for number in range(1, 4):
        streampca.fit(x, streampca.PCA(2, precision="double"), part=(number, 3), output=tmp_path / f"part{number}.zarr")
    done = subprocess.run([sys.executable, "-c", PEAK], cwd=tmp_path, check=True, capture_output=True, text=True)
    peak, estimate = map(int, done.stdout.split())
    if not peak:
        pytest.skip("this system does not tell a process its peak")
    assert 0.6 * estimate - 2**24 < peak < 1.1 * estimate + 2**24


# -- killed

KILLED = """
import os, signal, sys
import streampca
from streampca.models import store

at = sys.argv[1]

def kill(*ignored, **how):
    os.kill(os.getpid(), signal.SIGKILL)

if at == "consolidate":
    store.consolidate = kill
if at == "state":
    write = store.write_arrays
    store.write_arrays = lambda group, arrays: kill() if "scatter" in arrays else write(group, arrays)
if sys.argv[2] == "merge":
    streampca.merge("part*.zarr", output="model.zarr")
else:
    streampca.fit("x.npy", n_components=5, part="2/3", output="part2.zarr")
"""


def killed(*words):
    done = python(KILLED, *words)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.slow
def test_a_part_that_was_killed_is_missing(parts):
    shutil.rmtree("part2.zarr")
    killed("state", "fit")
    line = refused("merge", "part*.zarr", "-o", "model.zarr", "-q")
    assert "part 2/3 is missing" in line
    (left,) = Path().glob("part2.zarr.*-partial")
    assert "not a complete model" in refused("merge", parts[0], left, parts[2], "-o", "model.zarr", "-q")
    fit_part(2)
    assert not [*Path().glob("*-partial")]
    killed("consolidate", "merge")
    assert not Path("model.zarr").exists()
    merge_all()


def test_a_plan_of_a_part_says_what_it_reads():
    plans = []
    streampca.fit(
        images(), n_components=2, part="1/4", listener=lambda e: isinstance(e, Planned) and plans.append(e.plan)
    )
    (plan,) = plans
    assert "50 samples of 9 x 8" in str(plan)
    assert plan.bytes_read == pytest.approx(N * 72 / 4, rel=0.02)
