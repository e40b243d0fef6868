"""Choice of an array of a Zarr group: the one a key names, the finest level of an OME-Zarr picture, or the only one.

Pictures are found through their metadata, without listing the store: servers of plain HTTP cannot be listed.
"""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice, takewhile
from typing import Any, NamedTuple, overload

import numpy as np
import zarr

from ..errors import RequestError, SourceError, first_line, nearest
from ..storage.bounded_zarr import bounded
from ..storage.integrity import reason_of, refused_codec
from .collection import by_key
from .ome import Multiscale, is_numbered, is_plate, multiscale_of, parts_of
from .silence_decoders import quiet
from .stored import cf
from .stored.array import dims_of
from .stored.select_array import listing, select_array

# Most arrays that an error names: a plate has thousands, and each costs a look at its metadata.
_NAMED = 12


class ArrayPath(NamedTuple):
    """An array's path from the group, and where it is a level of an OME-Zarr picture, that picture and level."""

    name: str
    picture: Multiscale | None = None
    level: str = ""

    def within(self, folder: str) -> ArrayPath:
        """Return the same array with its path from the group that contains `folder`."""
        return self._replace(name=_joined(folder, self.name))


def choose(group: zarr.Group, key: str | None, source: str) -> ArrayPath:
    """Choose the array of a group that is read."""
    path = (key or "").strip("/")
    picture = _picture(group, source)
    if picture is not None:
        level = picture.level(path) if path else picture.levels[0]
        if level is not None:
            return ArrayPath(level, picture, level)
    if not path:
        return _only(group, source)
    node = member(group, path, f"{source}, array {path!r}")
    if isinstance(node, zarr.Group):
        return choose(node, None, f"{source}, group {path!r}").within(path)
    folder, _, last = path.rpartition("/")
    parent = member(group, folder, f"{source}, group {folder!r}") if folder else None
    within = f"{source}, group {folder!r}"
    if isinstance(parent, zarr.Group) and _picture(parent, within) is not None:
        return choose(parent, last, within).within(folder)
    if node is not None:
        return ArrayPath(path)
    arrays = _arrays(group, source)
    raise RequestError(f"{source} has no array {key!r}; it holds {listing(arrays)}.{nearest(path, list(arrays))}")


def variables_called(name: str, root: zarr.Group, folders: Iterable[str]) -> Iterator[cf.Variable]:
    """Yield the arrays called `name` in the given groups that hold numbers, or texts along one axis."""
    for folder in folders:
        label = f"coordinate {_joined(folder, name)!r}"
        array = member(root, _joined(folder, name), label)
        if not isinstance(array, zarr.Array) or not array.shape or array.dtype.kind not in "iufTUO":
            continue
        axes, text = dims_of(array) or ("",) * len(array.shape), array.dtype.kind in "TUO"
        if len(axes) == 1 or not text:
            read = partial(_decoded, array, slice(None), label)
            yield cf.Variable(axes, array.shape, text, dict(array.attrs), label, read)


def single_value(root: zarr.Group, folder: str, name: str) -> tuple[Any, Mapping[str, Any]] | None:
    """Return the value of an array without axes in a group, and its attributes; None if there is no such array."""
    label = f"coordinate {_joined(folder, name)!r}"
    array = member(root, _joined(folder, name), label)
    if not isinstance(array, zarr.Array) or array.shape or array.dtype.kind not in "iufTUO":
        return None
    return _decoded(array, (), label), dict(array.attrs)


class TextArray(Sequence[str]):
    """Texts in a stored array, read one chunk at a time: there can be one for each of 10^8 samples."""

    def __init__(self, array: Any, subject: str) -> None:
        self._array, self._subject = array, subject
        self._held: tuple[int, list[str]] = (-1, [])

    def __len__(self) -> int:
        return int(self._array.shape[0])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return list(map(str, _decoded(self._array, index, self._subject)))
        at, size = range(len(self))[index], int(self._array.chunks[0])
        chunk, held = self._held
        if at // size != chunk:
            chunk = at // size
            held = self[chunk * size : (chunk + 1) * size]
            self._held = chunk, held
        return held[at - chunk * size]


def text_array(root: zarr.Group, path: str, length: int, axis: str) -> TextArray | None:
    """Return the texts at a path, one for each of `length` entries along an axis; None if anything else is there."""
    array = member(root, path, f"names {path!r}")
    if not isinstance(array, zarr.Array) or array.shape != (length,) or array.dtype.kind not in "TUO":
        return None
    if dims_of(array) != (axis,):
        return None
    check_codecs(array, f"names {path!r}")  # now, and not when the last output is written
    return TextArray(array, f"names {path!r}")


def _decoded(array: Any, key: slice | tuple[()], subject: str) -> Any:
    """Read part of a small array that stands beside another."""
    check_codecs(array, subject)
    try:
        if array.dtype.kind in "TUO":
            return np.array([str(text) for text in np.atleast_1d(bounded(array)[key])], np.str_)
        return np.asarray(bounded(array)[key])
    except SourceError:
        raise
    except Exception as error:  # see reason_of
        raise broken(subject, error) from error


def check_codecs(array: Any, subject: str) -> None:
    """Refuse an array with a codec that is never decoded; see `streampca.storage.integrity`."""
    codec = refused_codec(array)
    if codec is not None:
        raise SourceError(
            f"{subject} is encoded with {codec!r}, which is not among the codecs that are decoded: others may run code "
            "that the data bring along. If you trust the store, write the array again with one of Zarr's own, such as "
            "zstd; text as vlen-utf8."
        )


def member(group: zarr.Group, path: str, subject: str) -> Any:
    """Return the array or group at a path, None if nothing is there."""
    try:
        with quiet():
            return group[path]
    except KeyError:
        return None
    except SourceError:
        raise
    except Exception as error:  # see reason_of
        raise broken(subject, error) from error


def broken(subject: str, error: BaseException) -> SourceError:
    """Return the error for an array or group that cannot be opened."""
    if type(error).__name__ == "UnknownCodecError":  # two classes, one of Zarr's and one of numcodecs'
        return SourceError(
            f"{subject} is encoded with a codec that is not installed ({first_line(error)}); install the package that "
            "provides it, or write the store again with one of Zarr's own, such as zstd."
        )
    return SourceError(f"{subject} is not a whole Zarr store ({reason_of(error)}); copy or write it again.")


def _only(group: zarr.Group, source: str) -> ArrayPath:
    """Return the only picture of a plate or a store of pictures, else the only array that can hold images."""
    pictures = dict(islice(_pictures(group, source), _NAMED + 1))
    if len(pictures) == 1:
        return next(iter(pictures.values()))[0]
    if pictures:
        several = f"more than {_NAMED}" if len(pictures) > _NAMED else str(len(pictures))
        by_path = {name: array for name, (_, array) in pictures.items()}
        first = next(iter(by_path))
        wells = _wells_of(group, source, first)
        raise SourceError(
            f"{source} holds {several} pictures, {listing(by_path)}; say which with {by_key(first)}{wells}."
        )
    arrays = _arrays(group, source)
    if not arrays:
        raise SourceError(
            f"{source} is a Zarr group without arrays, or its server cannot be asked for them; give the path of an "
            "array or of its group."
        )
    if is_model(group):
        raise SourceError(
            f"{source} is a model, not a collection; give images or scores (where a command takes a model, too, it "
            f"comes first), or one of its arrays: {by_key('components')}."
        )
    names = cf.auxiliary({name: dict(array.attrs) for name, array in arrays.items()})
    return choose(
        group, select_array(arrays, None, source, images=[name for name in arrays if name not in names]), source
    )


def _wells_of(group: zarr.Group, source: str, name: str) -> str:
    """Return the glob of a field of every well of a plate on this machine, given the path of a picture, for errors."""
    row_column_field = name.split("/")[:3]
    if not is_plate(dict(group.attrs)) or len(row_column_field) < 3 or not os.path.isdir(source):
        return ""
    pattern = shlex.quote(os.path.join(glob.escape(source.rstrip(os.sep)), "*", "*", row_column_field[2]))
    return f", or take a field of every well by {pattern}"


def is_model(group: zarr.Group) -> bool:
    """Return whether a group is a stored model, whose arrays look like images but are not."""
    about = dict(group.attrs).get("streampca")
    return isinstance(about, dict) and "format" in about


def _picture(group: zarr.Group, subject: str) -> Multiscale | None:
    """Return the picture that a group's metadata describe; None for a model, whose metadata serve other programs."""
    return None if is_model(group) else multiscale_of(dict(group.attrs), subject)


def _pictures(group: zarr.Group, source: str, folder: str = "") -> Iterator[tuple[str, tuple[ArrayPath, Any]]]:
    """Yield path, finest level and array of every picture that a group's metadata name."""
    for part in _parts(group, source):
        path = _joined(folder, part)
        subject = f"{source}, group {path!r}"
        node = member(group, part, subject)
        if not isinstance(node, zarr.Group):
            continue
        picture = multiscale_of(dict(node.attrs), subject)
        if picture is None:
            yield from _pictures(node, source, path)
            continue
        array = member(node, picture.levels[0], f"{subject}, array {picture.levels[0]!r}")
        if isinstance(array, zarr.Array):
            choice = ArrayPath(picture.levels[0], picture, picture.levels[0]).within(path)
            yield choice.name, (choice, array)


def _parts(group: zarr.Group, source: str) -> Iterator[str]:
    """Yield the paths of the groups that a group's metadata list; bioformats2raw can leave them to be counted."""
    parts: Iterable[str] = parts_of(dict(group.attrs))
    if not parts and is_numbered(dict(group.attrs)):
        notes = member(group, "OME", f"{source}, group 'OME'")
        parts = parts_of(dict(notes.attrs)) if isinstance(notes, zarr.Group) else []
        if not parts:
            parts = takewhile(
                lambda part: isinstance(member(group, part, f"{source}, group {part!r}"), zarr.Group), map(str, count())
            )
    yield from parts


def _arrays(group: zarr.Group, source: str) -> Mapping[str, Any]:
    """Return the arrays of a group by path, of each picture only the finest level."""
    try:
        with quiet():
            members = sorted(group.members(max_depth=None), key=lambda member: member[0])
    except SourceError:
        raise
    except Exception as error:  # see reason_of
        raise broken(source, error) from error
    pictures = {
        name: picture
        for name, member in members
        if isinstance(member, zarr.Group) and (picture := _picture(member, f"{source}, group {name!r}"))
    }
    arrays = {name: member for name, member in members if isinstance(member, zarr.Array)}
    return {
        name: array
        for name, array in arrays.items()
        if all(
            name == _joined(folder, picture.levels[0])
            for folder, picture in pictures.items()
            if name.startswith(f"{folder}/")
        )
    }


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
