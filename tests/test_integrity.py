"""Models that are damaged anywhere are refused by name, and nothing that is read runs code."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path

import numcodecs
import numcodecs.pickles
import numpy as np
import pytest
import zarr
from shell import refused, succeeded

import streampca
from streampca.errors import ModelError, SourceError, StreampcaError
from streampca.execution.checkpoint_file import INDEX, CheckpointFile
from streampca.models.load import load_model
from streampca.models.store import PER_COMPONENT
from streampca.planning import component_chunks
from streampca.storage import integrity
from streampca.storage.components import ComponentWriter, StoredComponents, UnfinishedComponents
from streampca.storage.integrity import absent_chunk, seal
from streampca.storage.writers import UnfinishedOutput

SHAPE = (12, 10)
DISC = np.hypot(*np.meshgrid(np.arange(10) - 4.5, np.arange(12) - 5.5)) < 5


@pytest.fixture(scope="module")
def small_tiles():
    """Shards of a few pixels and chunks of two components, so that small models have many."""
    sizes = {"TILE": 1024, "CHUNK": 64, "TOGETHER": 2, "LEAST_RUN": 16}
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(component_chunks, name, size)
        yield


def images(n=60, seed=0):
    rng = np.random.default_rng(seed)
    x = 120 + 10 * rng.normal(size=(n, 6)) @ rng.normal(size=(6, 120)) + rng.normal(size=(n, 120))
    return np.clip(x, 0, 255).astype(np.uint8).reshape(n, *SHAPE)


def fit(x, path):
    steps = streampca.Preparation(mask=DISC, scale=np.linspace(0.5, 2, 120).reshape(SHAPE))
    model = streampca.fit(x, streampca.PCA(5, method="covariance"), memory="64MiB", preparation=steps)
    model.save(path, overwrite=True)
    return model


@pytest.fixture(scope="module")
def fitted(small_tiles, tmp_path_factory):
    """A folder with two models, and one of them."""
    folder = tmp_path_factory.mktemp("fitted")
    np.save(folder / "x.npy", images())
    fit(images(seed=1)[:40], folder / "other.zarr")
    return folder, fit(images(), folder / "m.zarr")


@pytest.fixture
def model(fitted, tmp_path, monkeypatch):
    """``m.zarr``, sharded, masked, scaled and with its statistic, beside ``other.zarr`` and what it was fitted to."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(fitted[0], tmp_path, dirs_exist_ok=True)
    return fitted[1]


def files_of(path):
    return sorted(file for file in Path(path).rglob("*") if file.is_file())


COMMANDS = {
    "inspect": ("inspect", "m.zarr"),
    "transform": ("transform", "m.zarr", "x.npy", "-o", "scores.npy"),
    "pieces": ("transform", "m.zarr", "x.npy", "-o", "scores.npy"),  # with components left on disk
    "export": ("export", "m.zarr", "-o", "components.npy"),
    "merge": ("merge", "m.zarr", "other.zarr", "-o", "merged.zarr", "-q"),
    "verify": ("inspect", "m.zarr", "--verify"),
}


def readers_of(file):
    """Commands that read a file of a model."""
    array = file.relative_to("m.zarr").parts[0]
    if array == "zarr.json":
        return list(COMMANDS)
    if array == "components":
        return ["transform", "pieces", "export", "verify"]
    if array == "state" and file.name != "zarr.json":
        return ["merge", "verify"]
    if file.name == "zarr.json" or array in {"component", "explained_variance_ratio", "singular_values"}:
        return ["verify"]  # of metadata, the root's copies are read
    return list(COMMANDS)


def flip(file, rng):
    """Flip one bit; return whether JSON reads the same as before."""
    content = bytearray(file.read_bytes())
    before = bytes(content)
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    file.write_bytes(content)
    try:
        return file.name == "zarr.json" and json.loads(content) == json.loads(before)
    except ValueError:
        return False


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(1, 20))])
def test_every_damage_is_refused_by_name(model, monkeypatch, seed):
    """One flipped bit or one missing file, anywhere in what a command reads; 10 models a seed."""
    rng = np.random.default_rng(seed)
    held = streampca.models.store.fits_in_memory
    files = files_of("m.zarr")
    root = Path("m.zarr/zarr.json")
    for number in range(10):
        file = root if number % 5 == 0 else files[rng.integers(len(files))]
        name = str(rng.choice(readers_of(file)))
        whole, removed = file.read_bytes(), number % 4 == 3
        if removed:
            file.unlink()
        elif flip(file, rng):
            file.write_bytes(whole)
            continue
        monkeypatch.setattr(
            streampca.models.store, "fits_in_memory", held if name != "pieces" else lambda nbytes, memory: False
        )
        line = refused(*COMMANDS[name])
        assert "m.zarr" in line, (file, name, line)
        assert not any(map(os.path.exists, ("scores.npy", "components.npy", "merged.zarr"))), (file, name)
        file.write_bytes(whole)
    for name in ("transform", "export", "merge", "verify"):
        succeeded(*COMMANDS[name])


@pytest.mark.parametrize(
    ("bit", "step"), [(0, 10), *(pytest.param(bit, 1, marks=pytest.mark.campaign) for bit in (0, 6))]
)
def test_every_byte_of_the_components_metadata_counts(model, bit, step):
    """Components are read piece by piece, and Zarr itself ignores unknown keys of metadata."""
    stored = load_model("m.zarr", memory="1B").components
    file = Path("m.zarr/components/zarr.json")
    whole = file.read_bytes()
    for at in range(0, len(whole), step):
        changed = bytearray(whole)
        changed[at] ^= 1 << bit
        file.write_bytes(changed)
        with pytest.raises(ModelError, match=r"m\.zarr"):
            stored[0]
    file.write_bytes(whole)
    stored[0]


def test_white_space_and_order_of_metadata_do_not_count(model):
    for name in ("zarr.json", "components/zarr.json"):
        file = Path("m.zarr", name)
        document = json.loads(file.read_text())
        file.write_text(json.dumps(dict(reversed(document.items())), separators=(",", ":")))
    np.testing.assert_array_equal(load_model("m.zarr", memory="1B").components, model.components)
    succeeded(*COMMANDS["verify"])


def test_every_chunk_is_written_whatever_it_holds(model):
    """Also those wholly outside the mask, which hold nothing but the fill value, and sums that are zero."""
    group = zarr.open_group("m.zarr", mode="r")
    arrays = [array for _, array in group.members(max_depth=None) if isinstance(array, zarr.Array)]
    assert {array.basename for array in arrays} >= {"mask", "scale", "components", "scatter", *PER_COMPONENT}
    for array in arrays:
        assert absent_chunk(array, os.path.join("m.zarr", array.path)) is None
        assert "crc32c" in json.dumps(array.metadata.to_dict()["codecs"])
    assert not DISC[:1].any()
    assert group["components"].shards[1:] < SHAPE


def test_components_that_are_gone_on_with_are_written_whole(small_tiles, tmp_path):
    folder, mask = tmp_path / "begun", np.zeros(SHAPE, bool)
    mask[0] = True  # so that most tiles hold nothing but the fill value

    def sink(group, begun=None):
        how = {"dims": ("y", "x"), "dtype": "f4", "unfinished": UnfinishedOutput("01234567")}
        return ComponentWriter(group, (5, *SHAPE), mask=mask, resume=begun, **how)

    first = sink(zarr.create_group(folder))
    first.sync()
    again = sink(zarr.open_group(folder), UnfinishedComponents(first.identity, 0))
    assert again.resumed
    for span in again.ranges(10):
        again.write(span, np.zeros((5, span.size), np.float32))
    again.write_outside()
    array = zarr.open_array(folder / "components")
    assert array.shards[1:] < SHAPE
    assert absent_chunk(array, str(folder / "components")) is None


@pytest.mark.parametrize("key", [-1, slice(1, 3), (-1, slice(9, None)), (slice(0, 0),), (2, ..., slice(3, 5))])
def test_a_missing_piece_is_refused_where_it_is_read(model, key):
    """Other pieces are read as before."""
    stored, held = load_model("m.zarr", memory="1B").components, model.components
    assert isinstance(stored, StoredComponents)
    shards = zarr.open_array("m.zarr/components", mode="r").shards
    wanted = [axis[key] // side for axis, side in zip(np.indices(held.shape), shards, strict=True)]
    needed = set(zip(*(axis.ravel().tolist() for axis in wanted), strict=True))
    files = files_of("m.zarr/components/c")
    assert len(files) > 2
    for file in files:
        whole = file.read_bytes()
        file.unlink()
        if tuple(map(int, file.relative_to("m.zarr/components/c").parts)) in needed:
            with pytest.raises(ModelError, match=r"m\.zarr is damaged in components: values are missing"):
                stored[key]
        else:
            np.testing.assert_array_equal(stored[key], held[key])
        file.write_bytes(whole)


def test_an_interrupted_copy_is_refused_at_once(model):
    """Components that are not read yet are checked for existence."""
    files_of("m.zarr/components/c")[1].unlink()
    for name in ("inspect", "transform", "merge"):
        assert "m.zarr is damaged in components: values are missing, c" in refused(*COMMANDS[name])


def test_arrays_of_a_model_are_checked_as_a_collection_too(model):
    succeeded("info", "m.zarr", "--key", "components")
    files_of("m.zarr/components/c")[0].unlink()
    assert "m.zarr is damaged in components: values are missing" in refused("info", "m.zarr", "--key", "components")


def test_components_cut_short_are_refused_where_they_are_read(model):
    chunk = files_of("m.zarr/components/c")[0]
    chunk.write_bytes(chunk.read_bytes()[:20])
    assert "m.zarr is damaged in components" in refused(*COMMANDS["transform"])
    succeeded(*COMMANDS["inspect"])


def test_a_model_without_checksums_is_refused(model):
    root = Path("m.zarr/zarr.json")
    document = json.loads(root.read_text())
    for name, what in (("m.zarr/mean/zarr.json", "mean"), (None, "zarr.json")):
        digests = document["attributes"]["streampca"]["digests"]
        if name is None:
            del document["attributes"]["streampca"]["digests"]
        else:
            del digests["mean/zarr.json"]
            digests["zarr.json"] = integrity._root_digest(document)
        root.write_text(json.dumps(document))
        said = refused("inspect", "m.zarr", "--verify")
        assert f"m.zarr is damaged in {what}: " in said
        assert "missing" in said


def test_what_verify_prints(model):
    arrays = sum(file.name == "zarr.json" for file in files_of("m.zarr")) - 2  # but for the two groups
    assert f"read all of {arrays} arrays" in succeeded("inspect", "m.zarr", "--verify")
    about = json.loads(succeeded("inspect", "m.zarr", "--verify", "--json"))
    assert about["verified"] == {"arrays": arrays, "nbytes": about["verified"]["nbytes"]}
    assert about["verified"]["nbytes"] > 8 * 120


# -- models that make no sense, though no digest says so


def described(path, change):
    """Change the metadata of a model, where Zarr reads them, and seal it again."""
    root = Path(path, "zarr.json")
    document = json.loads(root.read_text())
    change(document["attributes"]["streampca"], document["consolidated_metadata"]["metadata"])
    root.write_text(json.dumps(document))
    seal(path)


def shaped(name, shape):
    def change(about, arrays):
        arrays[name]["shape"] = shape
        arrays[name]["chunk_grid"]["configuration"]["chunk_shape"] = [max(1, length) for length in shape]
        arrays[name]["dimension_names"] = [None] * len(shape)

    return change


def typed_as(name, dtype, fill=0):
    return lambda about, arrays: arrays[name].update(data_type=dtype, fill_value=fill)


def without(name):
    return lambda about, arrays: arrays.pop(name)


NONSENSE = {
    "mean of another shape": (shaped("mean", [12, 9]), "damaged in mean: it has shape (12, 9)"),
    "variances of another count": (shaped("explained_variance", [4]), "damaged in explained_variance: it has shape"),
    "mask of another shape": (shaped("mask", [10, 12]), "damaged in mask: it has shape (10, 12)"),
    "scale of another shape": (shaped("scale", [12, 10, 1]), "damaged in scale: "),
    "a bound for each of none": (shaped("residual_bound", [0]), "damaged in residual_bound: it has shape (0,)"),
    "many numbers of samples": (shaped("n_samples", [1]), "damaged in n_samples: "),
    "a type that Zarr does not know": (typed_as("mean", "float77"), "'float77'"),
    "complex variances": (
        typed_as("explained_variance", "complex64", [0, 0]),
        "it holds complex64 values, not numbers",
    ),
    "no mean": (without("mean"), "damaged in mean: "),
    "no components": (without("components"), "damaged in components: "),
    "no bound": (without("residual_bound"), "damaged in residual_bound: there is no such array"),
    "no preparation": (lambda about, arrays: about.pop("preparation"), "damaged in its attributes: "),
    "a number as preparation": (lambda about, arrays: about.update(preparation=3), "damaged in its attributes: "),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_a_model_that_makes_no_sense_is_one_clear_line(model, case):
    change, says = NONSENSE[case]
    described("m.zarr", change)
    for name in ("inspect", "transform", "merge"):
        line = refused(*COMMANDS[name])
        assert "m.zarr" in line
        assert says in line


def test_a_statistic_that_makes_no_sense_is_one_clear_line(model):
    described("m.zarr", shaped("state/scatter", [3, 3]))
    assert "m.zarr is damaged in state" in refused(*COMMANDS["merge"])


def test_a_root_without_the_metadata_of_its_arrays_is_damage(model):
    """Zarr would otherwise open all members of the group, whatever they are, and fail for each that it cannot open."""
    root = Path("m.zarr/zarr.json")
    document = json.loads(root.read_text())
    del document["consolidated_metadata"]
    document["attributes"]["streampca"]["digests"]["zarr.json"] = integrity._root_digest(document)
    root.write_text(json.dumps(document))
    line = refused("inspect", "m.zarr")
    assert "m.zarr is damaged in zarr.json: " in line
    assert "does not contain the metadata of the arrays" in line


# -- code in data

MARKER = "executed"
OPTIONS = {  # of codecs that cannot be made without
    "astype": {"encode_dtype": "<f8", "decode_dtype": "<f8"},
    "bitround": {"keepbits": 10},
    "categorize": {"labels": ["a", "b"], "dtype": "|O", "astype": "|u1"},
    "delta": {"dtype": "<f8"},
    "fixedscaleoffset": {"offset": 0, "scale": 1, "dtype": "<f8"},
    "quantize": {"digits": 3, "dtype": "<f8"},
    "vlen-array": {"dtype": "<f8"},
}
TEXT = {"id": "vlen-utf8"}


# A number that is dropped again stands first: codecs of text take four bytes for a count of items to make room for.
FEW = b"J\0\0\0\0" + b"0"


class Execute:
    """Leaves a file behind where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (MARKER,)


def write_v2(path, shape, chunk, dims, **about):
    """An array of Zarr v2 in one chunk, as whoever means harm would write it."""
    path.mkdir(parents=True)
    like = {"zarr_format": 2, "shape": shape, "chunks": shape, "dtype": "<f8", "fill_value": 0, "order": "C"}
    (path / ".zarray").write_text(json.dumps(like | {"compressor": None, "filters": None} | about))
    (path / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": dims}))
    (path / ".".join("0" * len(shape))).write_bytes(chunk)


EXECUTING = {"pickle", "json2", "msgpack2", "vlen-array"}  # decode to any objects, and are not decoded
TRIED = {"pickle", "vlen-bytes", "vlen-utf8", "categorize"}  # in every way; the last three are decoded, to some objects


def encodings(codec, every):
    """The ways in which an array may name a codec, or two of them: alone or with text, as filter or compressor."""
    own, text = {"id": codec, **OPTIONS.get(codec, {})}, {"dtype": "|O", "fill_value": None}
    ways = {
        "numbers-filter": {"filters": [own]},
        "numbers-compressor": {"compressor": own},
        "objects-filter": text | {"filters": [own]},
        "objects-compressor": text | {"compressor": own},
        "text-filter": text | {"filters": [TEXT, own]},
        "filter-text": text | {"filters": [own, TEXT]},
        "text-compressor": text | {"filters": [TEXT], "compressor": own},
    }
    return ways if every else {way: ways[way] for way in ("filter-text", "text-compressor")}


PLACES = {"sample": ([4], ["sample"]), "y": ([12], ["y"]), "notes": ([3], ["t"]), "images": ([4, 12, 10], None)}


def stores(codec, tmp_path, every=True):
    """Groups with arrays under a codec, in each way: the images themselves, or all that lies beside them."""
    harm = FEW + pickle.dumps(Execute())
    plain = np.random.default_rng(0).normal(size=(4, 12, 10)).tobytes()
    for way, encoding in encodings(codec, every).items():
        for kind in ("images", "beside"):
            store = tmp_path / f"{way}-{kind}.zarr"
            for place, (shape, dims) in PLACES.items():
                if (place == "images") == (kind == "images"):
                    write_v2(store / place, shape, harm, dims or ["sample", "y", "x"], **encoding)
                elif place == "images":
                    write_v2(store / place, shape, plain, ["sample", "y", "x"])
            (store / ".zgroup").write_text('{"zarr_format": 2}')
            yield store


def attempted(*acts):
    """Do things that may be refused, but in our own words only."""
    for act in acts:
        with suppress(StreampcaError):
            act()


@pytest.fixture
def unpickling(monkeypatch):
    """Set the option that numcodecs requires before it unpickles anything."""
    monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True)


CODECS = sorted(numcodecs.registry.codec_registry)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("codec", "every"),
    [
        *((codec, codec in TRIED) for codec in sorted({*EXECUTING, *TRIED, "delta", "zlib"})),
        *(pytest.param(codec, True, marks=pytest.mark.campaign) for codec in CODECS if codec not in TRIED),
    ],
)
def test_no_codec_executes_anything(model, unpickling, tmp_path, codec, every):
    """In collections, their names and coordinates, scores, and in what stands for a model."""
    about = {"streampca": {"format": 1, "kind": "pca", "complete": True, "preparation": {}, "provenance": {}}}
    for store in stores(codec, tmp_path, every):
        source = str(store)
        attempted(
            lambda source=source: read_all(streampca.open_collection(source)),
            lambda source=source: read_all(streampca.open_collection(source, key="images")),
            lambda source=source: read_all(opened_by_zarr(f"{source}/images")),
            lambda source=source: model.write_scores(source, "scores.npy", overwrite=True),
            lambda source=source: streampca.open_collection("x.npy", labels=f"{source}/notes"),
        )
        for name in ("mean", "components"):
            shutil.copytree(store / "images", store / name)
        (store / ".zattrs").write_text(json.dumps(about))
        attempted(lambda source=source: load_model(source, statistic=True))
        shutil.copytree(store, f"m.zarr/{store.name}")  # beside the arrays of a model, and in them
    assert succeeded(*COMMANDS["verify"])
    assert not Path(MARKER).exists()
    if codec == "pickle":  # the test of the test
        with pytest.raises((TypeError, ValueError, SystemError)):
            zarr.open(f"{tmp_path}/text-compressor-beside.zarr/sample", mode="r")[...]
        assert Path(MARKER).exists()


def opened_by_zarr(path):
    """A collection of an object of Zarr's, where Zarr itself opens it."""
    try:
        array = zarr.open(path, mode="r")
    except ValueError as error:
        raise SourceError(str(error)) from error
    return streampca.open_collection(array)


def read_all(collection):
    """Everything that a collection decodes."""
    with suppress(StreampcaError):
        collection.read(slice(0, collection.n_samples))
    with suppress(StreampcaError):
        dict(collection.coordinates)
    list(collection.sample_names() or [])


def test_codecs_that_are_not_decoded_are_named(tmp_path, unpickling, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stores_of = {store.name: store for store in stores("pickle", tmp_path)}
    with pytest.raises(SourceError, match=r"names 'sample' is encoded with 'pickle'"):
        streampca.open_collection(str(stores_of["text-compressor-beside.zarr"])).sample_names()
    whole = streampca.open_collection(str(stores_of["text-compressor-beside.zarr"]), key="images")
    assert whole.shape == (4, 12, 10)  # what is not asked for may be anything


def test_text_of_zarr_2_is_read(tmp_path):
    """xarray writes text as objects with codec vlen-utf8."""
    names = np.array(["b", "äöü", "c"], object)
    group = zarr.create_group(tmp_path / "t.zarr", zarr_format=2)
    group.create_array("images", data=np.ones((3, 4, 4)), attributes={"_ARRAY_DIMENSIONS": ["sample", "y", "x"]})
    made = group.create_array("sample", shape=(3,), dtype="string", attributes={"_ARRAY_DIMENSIONS": ["sample"]})
    made[...] = names
    found = streampca.open_collection(str(tmp_path / "t.zarr"))
    assert list(found.sample_names()) == list(names)


@pytest.mark.parametrize(("version", "shards"), [(2, None), (3, None), (3, (6,))])
def test_a_chunk_that_announces_more_texts_than_it_holds_is_refused(tmp_path, version, shards):
    """Codecs make room for as many as it says, here 1.6 GB for a few bytes, before they look at one."""
    group = zarr.create_group(tmp_path / "t.zarr", zarr_format=version)
    dims = {"dimension_names": ["sample", "y", "x"]} if version == 3 else {}
    attributes = {} if version == 3 else {"_ARRAY_DIMENSIONS": ["sample", "y", "x"]}
    group.create_array("images", data=np.ones((6, 4, 4)), attributes=attributes, **dims)
    made = group.create_array(
        "sample", shape=(6,), chunks=(3,), shards=shards, dtype="string", compressors=None,
        attributes={} if version == 3 else {"_ARRAY_DIMENSIONS": ["sample"]},
        **({"dimension_names": ["sample"]} if version == 3 else {}),
    )  # fmt: skip
    made[...] = np.array(list("abcdef"), object)
    names = streampca.open_collection(str(tmp_path / "t.zarr")).sample_names()
    assert list(names) == list("abcdef")
    for chunk in (tmp_path / "t.zarr" / "sample").rglob("*"):
        if chunk.is_file() and not chunk.name.startswith((".", "zarr.json")):
            data = chunk.read_bytes()
            chunk.write_bytes(data.replace(b"\3\0\0\0\1\0\0\0", (200_000_000).to_bytes(4, "little") + b"\1\0\0\0"))
    if version == 2:  # chunks may be said to be large, too
        about = tmp_path / "t.zarr" / "sample" / ".zarray"
        about.write_text(json.dumps(json.loads(about.read_text()) | {"chunks": [400_000_000]}))
    tracemalloc.start()
    with pytest.raises(SourceError, match=r"names 'sample' .* a chunk announces 200000000 texts, and 3 fit in it"):
        list(streampca.open_collection(str(tmp_path / "t.zarr")).sample_names())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


def test_every_codec_of_numcodecs_is_allowed_or_known_to_execute():
    """One that is new is not decoded until it stands in the list."""
    assert set(numcodecs.registry.codec_registry) - integrity.CODECS <= EXECUTING
    assert not EXECUTING & integrity.CODECS


def test_a_checkpoint_of_objects_is_none(tmp_path):
    CheckpointFile(str(tmp_path), "s").save({}, {"x": np.arange(3)})
    with zipfile.ZipFile(tmp_path / "s.a", "w") as archive:
        archive.writestr(INDEX, json.dumps({"format": 1, "sequence": 1, "about": {}, "names": ["x"]}))
        with archive.open("0.npy", "w") as member:
            np.save(member, np.array([Execute()], object), allow_pickle=True)
    assert CheckpointFile(str(tmp_path), "s").load() is None
    assert not Path(MARKER).exists()
