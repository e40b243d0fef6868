"""Integrity of what is read from disk: codecs that are safe to decode, and models that are whole.

Codecs are named in an array's metadata, and some run code that the data bring along: numcodecs' ``pickle`` calls
whatever a chunk names. Decoding is therefore limited to a list of codecs that only transform bytes and numbers.

A model is sealed when it is complete. Every chunk of its arrays is written, whatever it holds, and carries a CRC-32C,
which Zarr checks on reading; so a chunk that is absent, which Zarr reads as its fill value, is damage. The root's
attribute holds a SHA-256 of every ``zarr.json`` of the model: of those of the arrays, which `StoredComponents` and
other programs read, and of its own, in which the metadata of all arrays are consolidated. They are of the contents, by
sorted keys and without white space. Models written before this have no seal and are read as they are.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from ..errors import BudgetError, ModelError, Stopped
from ..machine import memory_limit
from ..planning.boxes import Box, tiles_of
from ..signals import safe_point
from ..units import MIB, budget_size, format_bytes
from .bounded_zarr import MOST_METADATA, TEXT_CODECS, bounded, limited_store
from .disk import check_regular, open_regular
from .outputs import REPLACED
from .writers import ATTRIBUTE, files_of

Array = npt.NDArray[Any]
Result = TypeVar("Result")

FORMAT = 1  # of models without steps that the first version would ignore, see `models/store.py` ...
NEWEST = 2  # ... and the highest that is read
METADATA = "zarr.json"
SMALL = 16 * MIB  # of arrays that are read whatever memory is allowed, as importing the package takes more
WAITS = (0.01, 0.02, 0.05, *10 * (0.1,))  # seconds before a model that is being replaced is read again
DIGESTS = "digests"  # in the root's attribute: SHA-256 by file
CHECKED = (ZstdCodec(), Crc32cCodec())  # compressors of every array of a model

# Of the Zarr v3 specification, of Zarr itself, and of numcodecs under the names it has in Zarr v2 and v3. Left out are
# those that decode to Python objects other than text and bytes: pickle, json2, msgpack2 and vlen-array.
CODECS = TEXT_CODECS | {
    "adler32", "astype", "base64", "bitround", "blosc", "bytes", "bz2", "categorize", "crc32", "crc32c", "delta",
    "endian", "fixedscaleoffset", "fletcher32", "gzip", "jenkins_lookup3", "lz4", "lzma", "packbits", "pcodec",
    "quantize", "sharding_indexed", "shuffle", "transpose", "zfpy", "zlib", "zstd",
}  # fmt: skip
# Prefixes of names: of numcodecs' codecs in Zarr v3, and of picture formats, where the user has registered them.
_NUMCODECS, _PICTURES = "numcodecs.", "imagecodecs_"


# -- codecs


def refused_codec(array: Any) -> str | None:
    """Return the name of the first codec of a Zarr array that is not decoded; None where all are.

    An array of objects is refused under the name of its data type unless one of `TEXT_CODECS` comes first, after which
    other codecs see bytes: they would take objects for such.
    """
    names = list(_codec_names(array.metadata.to_dict()))
    for name in names:
        if not name.startswith(_PICTURES) and name.removeprefix(_NUMCODECS) not in CODECS:
            return name
    first = next((name for name in names if name != "sharding_indexed"), None)
    if array.dtype.kind in "OT" and first not in TEXT_CODECS:
        return str(array.dtype)
    return None


def _codec_names(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of all codecs of an array, those inside shards included."""
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
    """Return kind and first line of an error: metadata, codecs and stores are others' and raise what they like."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


# -- models and graphs


@dataclass(frozen=True)
class Sort:
    """A sort of sealed group, as messages name it.

    Attributes
    ----------
    noun, command : str
        Name of what it holds, and the command that writes it.
    again : str
        Remedy where it is damaged.
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
    about[DIGESTS][METADATA] = _root_digest(document)
    with open(os.path.join(path, METADATA), "w", encoding="utf-8") as file:
        json.dump(document, file, indent=2)


def metadata_digest(path: str) -> str:
    """Return the digest of a file of metadata; raises what opening and parsing it does."""
    return _digest(read_json(path))


def read_json(path: str) -> Any:
    """Return the contents of a file of metadata; raises ValueError if it is too long, and what parsing it does."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        text = file.read(min(size, MOST_METADATA) + 1)  # as many bytes are allocated, whatever there are
    if max(size, len(text)) > MOST_METADATA:
        raise ValueError(f"metadata take at most {format_bytes(MOST_METADATA)}, and it has {format_bytes(size)}")
    return json.loads(text.decode("utf-8"))


def check_metadata(path: str, name: str, digest: str | None) -> None:
    """Compare the metadata beside an array or group of a model with their digest, where there is one.

    Raises
    ------
    ModelError
        If they are others, or cannot be read.
    """
    with naming_damage(path, name):
        if digest is not None and metadata_digest(os.path.join(path, name, METADATA)) != digest:
            raise damaged(path, name, f"its {METADATA} does not match its checksum")


def absent_chunk(array: Any, folder: str, box: Box | None = None) -> str | None:
    """Return the key of the first chunk or shard of a box of an array that has no file; None where all have.

    `folder` is the array's; the box is the whole array by default. Takes a few microseconds a file.
    """
    whole = tuple(slice(0, length) for length in array.shape)
    for file in files_of(array, folder, whole if box is None else box):
        if not os.path.exists(file):
            return os.path.relpath(file, folder)
    return None


@dataclass(frozen=True)
class OpenModel:
    """A model's group, opened for reading.

    Attributes
    ----------
    path : str
        The model's folder.
    group : zarr.Group
        Its metadata are those consolidated in the root, which a sealed model's digest covers.
    about : mapping
        The root's attribute.
    sort : Sort
        Noun for the group in messages.
    memory : int
        Most bytes of values to read into memory at once.
    """

    path: str
    group: zarr.Group
    about: Mapping[str, Any]
    sort: Sort
    memory: int

    @property
    def is_sealed(self) -> bool:
        """True where checksums, a digest and every chunk are there."""
        return DIGESTS in self.about

    def array(self, name: str) -> Any:
        """Return an array by its name in the group, with all of its chunks there; None if the model has none.

        Raises
        ------
        ModelError
            If it is damaged, or encoded by what is not decoded.
        """
        with self.naming_damage(name):
            found = self.group.get(name)
        if not isinstance(found, zarr.Array):
            return None
        check_codecs(self.path, name, found, self.sort)
        absent = absent_chunk(found, os.path.join(self.path, name)) if self.is_sealed else None
        if absent is not None:
            raise self.damaged(name, f"values are missing, {absent} is not there")
        return bounded(found)

    def check_fits(self, *names: str, nbytes: int = 0) -> None:
        """Refuse to read arrays that together, with further bytes, take more than the memory allowed.

        Raises
        ------
        BudgetError
            Before anything is allocated.
        """
        arrays = (self.group.get(name) for name in names)
        nbytes += sum(array.nbytes for array in arrays if isinstance(array, zarr.Array))
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
        """Read an array a file at a time, and the metadata that lie beside it; return its bytes. Raises as `array`."""
        array = self.array(name)
        if array is None:
            raise self.damaged(name, "there is no such array")
        check_metadata(self.path, name, self.digest(name))
        self.check_fits(nbytes=math.prod(array.shards or array.chunks) * array.dtype.itemsize)
        with self.naming_damage(name):
            nbytes = 0
            for box in tiles_of(array.shape, array.shards or array.chunks):
                safe_point()
                nbytes += np.asarray(array[box]).nbytes
            return nbytes

    def digest(self, name: str) -> str | None:
        """Return the digest that the metadata beside an array or group must have; None where the model has none."""
        found = self.about[DIGESTS].get(f"{name}/{METADATA}") if self.is_sealed else None
        return found if isinstance(found, str) else None

    def damaged(self, name: str, reason: str) -> ModelError:
        """Return the error for an array that cannot be used."""
        return damaged(self.path, name, reason, self.sort)

    def naming_damage(self, name: str) -> AbstractContextManager[None]:
        """Raise what reading an array raises as damage to it."""
        return naming_damage(self.path, name, self.sort)


@contextmanager
def naming_damage(path: str, name: str, sort: Sort = MODEL) -> Iterator[None]:
    """Raise what reading a part of a model raises as damage to that part; see `reason_of`."""
    try:
        yield
    except (ModelError, MemoryError, Stopped):  # refusals of the budget among them
        raise
    except Exception as error:
        raise damaged(path, name, reason_of(error), sort) from None


def check_codecs(path: str, name: str, array: Any, sort: Sort = MODEL) -> None:
    """Refuse an array of a model that is encoded by what is not decoded."""
    codec = refused_codec(array)
    if codec is not None:
        raise damaged(path, name, f"it is encoded with {codec!r}, which is not decoded", sort)


def damaged(path: str, name: str, reason: str, sort: Sort = MODEL) -> ModelError:
    """Return the error for a part of a model that cannot be used."""
    return ModelError(f"{path} is damaged in {name}: {reason.rstrip('.')}. {sort.again}")


def read_model(path: str, kinds: Iterable[str] = (), sort: Sort = MODEL, *, memory: int | None = None) -> OpenModel:
    """Open a model (or a graph, by its sort), of some kinds or of any, and check its metadata; reads one file.

    Arrays of more than `memory` bytes, by default half of what the machine allows, are not read.

    Raises
    ------
    ModelError
        If there is none, or it is incomplete, damaged, of another kind, or of a newer format.
    """
    if os.path.exists(aside := path.rstrip("/") + REPLACED) and not os.path.exists(path):
        raise ModelError(
            f"{path} does not exist: a run that was to replace it was killed. Run the same command again, or rename "
            f"{aside}, the {sort.noun} that was there."
        )
    if not os.path.exists(path):
        raise ModelError(
            f"{path} does not exist; give the folder of a {sort.noun}, as written by 'streampca {sort.command} -o'."
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
    kind, known, number = about.get("kind"), [*kinds], about.get("format")
    if "format" not in about or (known and kind not in known):
        wanted = f"{sort.noun} of kind {' or '.join(map(repr, known))}" if known else sort.noun
        remedy = "a fitted model" if sort == MODEL else f"a {sort.noun} written by 'streampca {sort.command}'"
        raise ModelError(f"{path} holds a {kind!r}, not a {wanted}; give {remedy}.")
    if not isinstance(number, int) or number > NEWEST:
        raise ModelError(
            f"{path} is a {sort.noun} of format {number} and this version reads up to {NEWEST}; upgrade streampca."
        )
    with naming_damage(path, METADATA, sort):
        if DIGESTS in about and _root_digest(document) != about[DIGESTS].get(METADATA):
            raise ValueError("its contents do not match its checksum")
        group = zarr.open_group(limited_store(path), mode="r", zarr_format=3)
        opened = OpenModel(path, group, about, sort, memory_limit()[0] // 2 if memory is None else memory)
        # Looked for in a scalar: the index of a shard has had one all along.
        has_checksums = "crc32c" in _codec_names(opened.group["n_samples"].metadata.to_dict())
    if has_checksums and not opened.is_sealed:  # the one is never written without the other
        raise damaged(path, METADATA, "its checksums are missing", sort)
    return opened


def read_unreplaced(path: str, read: Callable[[], Result]) -> Result:
    """Return what a function reads of a model; call it again where the model was replaced meanwhile.

    A replacement takes two renamings, between which there is no model at the path, and what is read before and after
    is of two models. Each has a root of its own, as it names the components by an identity.
    """
    problem = ModelError(
        f"{path} was replaced each time it was read; stop the program that replaces it, or load a copy."
    )
    for wait in WAITS:
        before = _root_bytes(path)
        try:
            found = read()
        except ModelError as error:
            problem = error
            being_replaced = before is None and os.path.exists(path.rstrip("/") + REPLACED)
            if not being_replaced and _root_bytes(path) == before:
                raise
        else:
            if _root_bytes(path) == before:
                return found
        time.sleep(wait)
    raise problem


def _root_bytes(path: str) -> bytes | None:
    try:
        with open_regular(os.path.join(path, METADATA)) as file:
            size = os.fstat(file.fileno()).st_size
            return bytes(file.read(min(size, MOST_METADATA) + 1))  # a longer one is refused
    except OSError:
        return None


def _document(path: str, sort: Sort = MODEL) -> dict[str, Any]:
    """Return the root's metadata as they stand in their file.

    Raises
    ------
    ModelError
        If there are none, or they are not a group's.
    """
    place, remedy = os.path.join(path, METADATA), f"Give a folder written by 'streampca {sort.command}'."
    if not os.path.isfile(place):
        what = f"it has no {METADATA}" if os.path.isdir(path) else "it is a file"
        try:
            check_regular(place)
        except OSError as error:
            what = f"its {METADATA} cannot be read: {error.strerror}"
        raise ModelError(f"{path} is not a {sort.noun}: {what}. {remedy}")
    try:
        found = read_json(place)
        if found["node_type"] == "array":
            raise ModelError(f"{path} is not a {sort.noun}: it is a Zarr array. {remedy}")
        if found["node_type"] != "group" or not isinstance(found["attributes"], dict):
            raise ValueError(f"it is a Zarr {found['node_type']}")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        what = f"a {sort.noun}, or its {METADATA} is damaged: {reason_of(error)}"
        raise ModelError(f"{path} is not {what}. {remedy}") from None
    return dict(found)


def _root_digest(document: Mapping[str, Any]) -> str:
    """Return the digest of the root's metadata, but for this very digest in them."""
    attributes = document["attributes"]
    others = {file: known for file, known in dict(attributes[ATTRIBUTE][DIGESTS]).items() if file != METADATA}
    about = {**attributes[ATTRIBUTE], DIGESTS: others}
    return _digest({**document, "attributes": {**attributes, ATTRIBUTE: about}})


def _digest(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
