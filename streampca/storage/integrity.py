"""Integrity of stored data: codecs that are safe to decode, and models that are complete and unchanged.

Codecs are named in an array's metadata, and some run code from the data: numcodecs' ``pickle`` calls whatever a chunk
names. Decoding is therefore limited to a list of codecs that only transform bytes and numbers.

A model is sealed when it is complete. Every chunk of its arrays is written, whatever it holds, and has a CRC-32C, which
Zarr checks on reading; so a missing chunk, which Zarr reads as its fill value, is damage. The root's attribute holds a
SHA-256 of every ``zarr.json`` of the model: of the arrays, which `StoredComponents` and other programs read, and of the
root itself, in which the metadata of all arrays are consolidated. The digests are of the contents, with sorted keys and
without white space. Models written before this have no seal and are read as they are.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from ..arrays import Array
from ..errors import BudgetError, ModelError, SourceError, Stopped
from ..machine import memory_limit
from ..planning.boxes import Box, tiles_of
from ..signals import safe_point
from ..units import MIB, budget_size, format_bytes
from .bounded_zarr import MOST_METADATA, TEXT_CODECS, bounded, limited_store
from .disk import check_regular, file_bytes, is_file, named_beside
from .object_store import is_taking_place
from .outputs import REPLACED
from .remote import is_url, naming
from .writers import ATTRIBUTE, files_of
from .zarr_urls import METADATA

Result = TypeVar("Result")

FORMAT = 1  # of models and graphs
SMALL = 16 * MIB  # arrays up to this size are read with any budget, as importing the package takes more
WAITS = (0.01, 0.02, 0.05, *10 * (0.1,))  # seconds before a model that is being replaced is read again
DIGESTS = "digests"  # key in the root's attribute: SHA-256 by file
CHECKED = (ZstdCodec(), Crc32cCodec())  # compressors of every array of a model

# Codecs of the Zarr v3 specification, of Zarr itself, and of numcodecs under its names in Zarr v2 and v3, except those
# that decode to Python objects other than text and bytes: pickle, json2, msgpack2 and vlen-array.
CODECS = TEXT_CODECS | {
    "adler32", "astype", "base64", "bitround", "blosc", "bytes", "bz2", "categorize", "crc32", "crc32c", "delta",
    "endian", "fixedscaleoffset", "fletcher32", "gzip", "jenkins_lookup3", "lz4", "lzma", "packbits", "pcodec",
    "quantize", "sharding_indexed", "shuffle", "transpose", "zfpy", "zlib", "zstd",
}  # fmt: skip
# Prefixes of names: numcodecs' codecs in Zarr v3, and picture formats that the user has registered.
_NUMCODECS, _PICTURES = "numcodecs.", "imagecodecs_"


# -- codecs


def refused_codec(array: Any) -> str | None:
    """Return the name of the first codec of a Zarr array that is not allowed; None if all are.

    An array of objects is refused by its data type unless the first codec is one of `TEXT_CODECS`, after which other
    codecs get bytes: they would misread objects as bytes.
    """
    names = list(_codec_names(array.metadata.to_dict()))
    for name in names:
        if not name.startswith(_PICTURES) and name.removeprefix(_NUMCODECS) not in CODECS:
            return name
    # The codecs of a shard follow `sharding_indexed`.
    first = next((name for name in names if name != "sharding_indexed"), None)
    if array.dtype.kind in "OT" and first not in TEXT_CODECS:
        return str(array.dtype)
    return None


def _codec_names(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of all codecs of an array, including those inside shards."""
    if metadata["zarr_format"] == 2:
        stored = (*(metadata.get("filters") or ()), metadata.get("compressor"))
        yield from (str(codec["id"]) for codec in stored if codec is not None)
    else:
        yield from _named(metadata["codecs"])


def _named(codecs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for codec in codecs:
        yield str(codec["name"])
        inside = codec.get("configuration") or {}
        yield from _named((*inside.get("codecs", ()), *inside.get("index_codecs", ())))


def reason_of(error: BaseException) -> str:
    """Return class and first line of an error, as metadata, codecs and stores of others can raise anything."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


# -- models and graphs


@dataclass(frozen=True)
class Sort:
    """Sort of sealed group, with its names in messages.

    Attributes
    ----------
    noun, command : str
        Name of the contents, and the command that writes the group.
    again : str
        Remedy if it is damaged.
    """

    noun: str
    command: str
    again: str


MODEL = Sort("model", "fit", "Fit it again.")
GRAPH = Sort("graph", "neighbors", "Make it again with 'streampca neighbors'.")


def seal(path: str) -> None:
    """Write the digests of a complete model's metadata into its root, which is consolidated."""
    document = _document(path)
    about = document["attributes"][ATTRIBUTE]
    files = [f"{name}/{METADATA}" for name in document["consolidated_metadata"]["metadata"]]
    about[DIGESTS] = {file: metadata_digest(os.path.join(path, file)) for file in files}
    # The root's digest covers the digests of all other files.
    about[DIGESTS][METADATA] = _root_digest(document)
    with open(os.path.join(path, METADATA), "w", encoding="utf-8") as file:
        file.write(json.dumps(document))


def metadata_digest(path: str) -> str:
    """Return the digest of a file of metadata; raises errors of opening and parsing."""
    return _digest(read_json(path))


def read_json(path: str) -> Any:
    """Return the contents of a file of metadata; raises ValueError if it is too long, and errors of parsing."""
    text = file_bytes(path, MOST_METADATA)
    if len(text) > MOST_METADATA:
        raise ValueError(f"metadata take at most {format_bytes(MOST_METADATA)}, and it has more")
    return json.loads(text.decode("utf-8"))


def check_metadata(path: str, name: str, digest: str | None) -> None:
    """Compare the metadata file of an array or group of a model with its digest, if there is one.

    Raises
    ------
    ModelError
        If the metadata differ, or cannot be read.
    """
    with naming_damage(path, name):
        if digest is not None and metadata_digest(os.path.join(path, name, METADATA)) != digest:
            raise damaged(path, name, f"its {METADATA} does not match its checksum")


def absent_chunk(array: Any, folder: str, box: Box | None = None) -> str | None:
    """Return the key of the first chunk or shard of a box of an array without a file; None if all exist.

    `folder` is that of the array; the box is the whole array by default. Cost: a few microseconds per file. None are
    looked up behind a URL, where reading notices them (`SealedStore`).
    """
    if is_url(folder):
        return None
    whole = tuple(slice(0, length) for length in array.shape)
    for file in files_of(array, folder, whole if box is None else box):
        if not os.path.exists(file):
            return os.path.relpath(file, folder)
    return None


@dataclass(frozen=True)
class OpenModel:
    """Group of a model, opened for reading.

    Attributes
    ----------
    path : str
        Folder of the model.
    group : zarr.Group
        Group of the model.
    metadata : mapping
        Metadata of all arrays and groups by name: those consolidated in the root, which a sealed model's digest covers.
    about : mapping
        Attribute of the root.
    sort : Sort
        Noun for the group in messages.
    memory : int
        Largest number of bytes of values to read into memory at once.
    checked : dict
        Arrays that were checked and can be read, by name.
    """

    path: str
    group: zarr.Group
    metadata: Mapping[str, Any]
    about: Mapping[str, Any]
    sort: Sort
    memory: int
    checked: dict[str, Any] = field(default_factory=dict)

    def array(self, name: str) -> Any:
        """Return an array by its name in the group, after checking once that all chunks exist; None if there is none.

        Raises
        ------
        ModelError
            If it is damaged, or encoded by a codec that is not allowed.
        """
        if name in self.checked:
            return self.checked[name]
        with self.naming_damage(name):
            array = self._stored(name)
        if array is None:
            return None
        check_codecs(self.path, name, array, self.sort)
        absent = absent_chunk(array, os.path.join(self.path, name))
        if absent is not None:
            raise self.damaged(name, f"values are missing, {absent} is not there")
        self.checked[name] = bounded(array)
        return self.checked[name]

    def _stored(self, name: str) -> Any:
        """Return an array unchecked; `group.get` would wait for Zarr's event loop in another thread at each call."""
        metadata = self.metadata.get(name)
        if metadata is None or metadata.node_type != "array":
            return None
        return zarr.Array(zarr.AsyncArray(metadata, self.group.store_path / name))

    def check_fits(self, *names: str, nbytes: int = 0) -> None:
        """Refuse to read arrays that together with `nbytes` further bytes exceed the allowed memory.

        Raises
        ------
        BudgetError
            If they do; nothing has been allocated.
        """
        nbytes += sum(array.nbytes for name in names if (array := self._stored(name)) is not None)
        if nbytes > max(self.memory, SMALL):
            named = f" ({', '.join(names[:3])}{', ...' * (len(names) > 3)})" if names else ""
            raise BudgetError(
                f"{self.path} says that its arrays{named} take {format_bytes(nbytes)}, and memory allows "
                f"{format_bytes(self.memory)}; check where the {self.sort.noun} comes from, and set memory to at least "
                f"{budget_size(nbytes)} if you trust it."
            )

    def read(self, name: str, read: Callable[[Any], Array] = lambda array: np.asarray(array[...])) -> Array | None:
        """Read an array into memory; None if the model has none. Raises as `array` and `check_fits`."""
        array = self.array(name)
        if array is None:
            return None
        self.check_fits(name)
        with self.naming_damage(name):
            return read(array)

    def verify(self, name: str) -> int:
        """Read an array a file at a time, and its metadata; return its bytes. Raises as `array`."""
        array = self.array(name)
        if array is None:
            raise self.damaged(name, "there is no such array")
        check_metadata(self.path, name, self.digest(name))
        self.check_fits(nbytes=math.prod(array.shards or array.chunks) * array.dtype.itemsize)
        with self.naming_damage(name):
            nbytes = 0
            for box in tiles_of(array.shape, array.shards or array.chunks):
                safe_point()
                # Reading a whole file checks the CRC-32C of each of its chunks.
                nbytes += np.asarray(array[box]).nbytes
            return nbytes

    def digest(self, name: str) -> str:
        """Return the digest required of the metadata file of an array or group."""
        digest = self.about[DIGESTS].get(f"{name}/{METADATA}")
        if not isinstance(digest, str):
            raise self.damaged(name, "its checksum is missing")
        return digest

    def damaged(self, name: str, reason: str) -> ModelError:
        """Return the error for an array that cannot be used."""
        return damaged(self.path, name, reason, self.sort)

    def naming_damage(self, name: str) -> AbstractContextManager[None]:
        """Convert errors of reading an array to damage of this array."""
        return naming_damage(self.path, name, self.sort)


@contextmanager
def naming_damage(path: str, name: str, sort: Sort = MODEL) -> Iterator[None]:
    """Convert errors of reading a part of a model to damage of that part; see `reason_of`."""
    try:
        yield
    except (ModelError, SourceError, MemoryError, Stopped):  # including refusals of the budget
        raise
    except Exception as error:
        raise damaged(path, name, reason_of(error), sort) from None


def check_codecs(path: str, name: str, array: Any, sort: Sort = MODEL) -> None:
    """Refuse an array of a model that is encoded by a codec that is not allowed."""
    codec = refused_codec(array)
    if codec is not None:
        raise damaged(path, name, f"it is encoded with {codec!r}, which is not decoded", sort)


def damaged(path: str, name: str, reason: str, sort: Sort = MODEL) -> ModelError:
    """Return the error for a part of a model that cannot be used."""
    return ModelError(f"{path} is damaged in {name}: {reason.rstrip('.')}. {sort.again}")


def read_model(path: str, kinds: Iterable[str] = (), sort: Sort = MODEL, *, memory: int | None = None) -> OpenModel:
    """Open a model (or a graph, by its sort), of given kinds or any, and check its metadata; reads one file.

    Arrays of more than `memory` bytes, by default half of the machine's limit, are not read.

    Raises
    ------
    ModelError
        If it is missing, incomplete, damaged, of another kind, or of a newer format.
    """
    if is_url(path):
        _check_is_at_url(path, sort)
    # A replacement renames the old model aside, then the new one to its path.
    elif os.path.exists(aside := named_beside(path.rstrip("/")) + REPLACED) and not os.path.exists(path):
        raise ModelError(
            f"{path} does not exist: a run that was to replace it was killed. Run the same command again, or rename "
            f"{aside}, the {sort.noun} that was there."
        )
    elif not os.path.exists(path):
        raise ModelError(
            f"{path} does not exist; give the folder of a {sort.noun}, as written by {sort.command} with -o (output)."
        )
    document = _document(path, sort)
    about = document["attributes"].get(ATTRIBUTE)
    if not isinstance(about, dict):
        raise ModelError(
            f"{path} is a Zarr group, but not a {sort.noun}; give a folder written by 'streampca {sort.command}'."
        )
    if about.get("complete") is not True:
        what = f"a complete {sort.noun}; the {sort.command}"
        raise ModelError(f"{path} is not {what} that wrote it did not finish. Run it again.")
    kind, expected, number = about.get("kind"), [*kinds], about.get("format")
    if "format" not in about or (expected and kind not in expected):
        expectation = f"{sort.noun} of kind {' or '.join(map(repr, expected))}" if expected else sort.noun
        remedy = "a fitted model" if sort == MODEL else f"a {sort.noun} written by 'streampca {sort.command}'"
        raise ModelError(f"{path} holds a {kind!r}, not a {expectation}; give {remedy}.")
    if not isinstance(number, int) or number > FORMAT:
        raise ModelError(
            f"{path} is a {sort.noun} of format {number} and this version reads up to {FORMAT}; upgrade streampca."
        )
    with naming_damage(path, METADATA, sort):
        if DIGESTS not in about:
            raise ValueError("its checksums are missing")
        if _root_digest(document) != about[DIGESTS].get(METADATA):
            raise ValueError("its contents do not match its checksum")
        group = zarr.open_group(limited_store(path, sealed=True), mode="r", zarr_format=3)
        consolidated = group.metadata.consolidated_metadata
        if consolidated is None:
            raise ValueError("it does not contain the metadata of the arrays")
    metadata = consolidated.flattened_metadata
    return OpenModel(path, group, metadata, about, sort, memory_limit()[0] // 2 if memory is None else memory)


def _check_is_at_url(url: str, sort: Sort) -> None:
    """Refuse a URL where there is no model, which includes one that is not complete."""
    with naming(url):
        is_there = is_file(os.path.join(url, METADATA))
    if not is_there:
        if is_taking_place(url):
            raise ModelError(
                f"{url} is not complete: the run that wrote it was killed, or is about to end. Wait for its end, or "
                "run the same command again."
            )
        raise ModelError(
            f"{url} holds no complete {sort.noun}; give the URL of one, as written by {sort.command} with -o (output)."
        )


def read_unreplaced(path: str, read: Callable[[], Result]) -> Result:
    """Return the result of reading a model; read again if the model was replaced meanwhile.

    A replacement consists of two renamings. Between them no model exists at the path, and values read before and after
    belong to two models. Their roots differ, as each names the components by an identity.
    """
    problem = ModelError(
        f"{path} was replaced each time it was read; stop the program that replaces it, or load a copy."
    )
    for wait in WAITS:
        before = _root_bytes(path)
        try:
            result = read()
        except ModelError as error:
            problem = error
            # Between the two renamings, retry; any other damage of an unchanged model is real.
            being_replaced = before is None and (
                is_taking_place(path) if is_url(path) else os.path.exists(named_beside(path.rstrip("/")) + REPLACED)
            )
            if not being_replaced and _root_bytes(path) == before:
                raise
        else:
            if _root_bytes(path) == before:
                return result
        time.sleep(wait)
    raise problem


def _root_bytes(path: str) -> bytes | None:
    try:
        with naming(path):
            return file_bytes(os.path.join(path, METADATA), MOST_METADATA)  # longer files are refused
    except OSError:
        return None


def _document(path: str, sort: Sort = MODEL) -> dict[str, Any]:
    """Return the root's metadata as stored in their file.

    Raises
    ------
    ModelError
        If they are missing, or do not describe a group.
    """
    place, remedy = os.path.join(path, METADATA), f"Give a folder written by 'streampca {sort.command}'."
    if not is_url(path) and not os.path.isfile(place):
        what = f"it has no {METADATA}" if os.path.isdir(path) else "it is a file"
        try:
            check_regular(place)
        except OSError as error:
            what = f"its {METADATA} cannot be read: {error.strerror}"
        raise ModelError(f"{path} is not a {sort.noun}: {what}. {remedy}")
    try:
        # The file can hold anything: errors of its structure are named as damage.
        document = read_json(place)
        if document["node_type"] == "array":
            raise ModelError(f"{path} is not a {sort.noun}: it is a Zarr array. {remedy}")
        if document["node_type"] != "group" or not isinstance(document["attributes"], dict):
            raise ValueError(f"it is a Zarr {document['node_type']}")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        if isinstance(error, (ModelError, SourceError)):
            raise
        what = f"a {sort.noun}, or its {METADATA} is damaged: {reason_of(error)}"
        raise ModelError(f"{path} is not {what}. {remedy}") from None
    return dict(document)


def _root_digest(document: Mapping[str, Any]) -> str:
    """Return the digest of the root's metadata without this digest itself."""
    attributes = document["attributes"]
    digests = {file: digest for file, digest in dict(attributes[ATTRIBUTE][DIGESTS]).items() if file != METADATA}
    about = {**attributes[ATTRIBUTE], DIGESTS: digests}
    return _digest({**document, "attributes": {**attributes, ATTRIBUTE: about}})


def _digest(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
