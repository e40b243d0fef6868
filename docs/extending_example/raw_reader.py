"""A reader of bare binary files that say their shape and dtype in their names: cells_100x64x48_uint16.raw."""

import os
import re

import numpy as np

from streampca import Collection
from streampca.errors import RequestError, SourceError
from streampca.readers import Format
from streampca.readers.collection import State, digest, file_state, refuse_key

NAME = re.compile(r"_(\d+(?:x\d+)+)_(u?int(?:8|16|32)|float(?:32|64))\.raw$")


class RawFile(Collection):
    """Samples one after another, little-endian, without a header."""

    def __init__(self, path):
        shape, dtype = NAME.search(path).groups()
        self.source = path
        self.shape = tuple(int(length) for length in shape.split("x"))
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.state = digest(file_state(path))
        size = os.path.getsize(path)
        if size != self.nbytes:
            raise SourceError(f"{path} has {size} bytes and its name says {self.nbytes}; copy it again.")

    def read(self, rows, features=None):
        """Read samples, or a range of the features of each; the file is opened anew, so that threads do not meet."""
        features = features or slice(0, self.n_features)
        out = np.empty((rows.stop - rows.start, features.stop - features.start), self.dtype)
        pieces = [(rows.start, out)] if out.shape[1] == self.n_features else enumerate(out, rows.start)
        with open(self.source, "rb") as file:
            for sample, piece in pieces:
                file.seek(sample * self.row_bytes + features.start * self.dtype.itemsize)
                if piece.size and file.readinto(piece.data) != piece.nbytes:
                    raise SourceError(f"{self.source} ends before sample {sample} does; copy it again.")
        return out

    def states(self, *, now=False):
        """Tell the file as it was opened from what it is now: no run goes on with other data."""
        return [State(0, self.source, digest(file_state(self.source)) if now else self.state)]


def open_raw(source, *, key=None, sample_axes=None, select=None):
    """Open such a file; the options are those of `streampca.open_collection`."""
    refuse_key(key, source)
    if sample_axes is not None or select is not None:
        raise RequestError(f"{source} is read by whole samples; leave sample_axes and select out.")
    return RawFile(source)


def is_raw(source):
    """Whether a source is such a file. Called with whatever `open_collection` was given: text, lists, objects."""
    return isinstance(source, str) and NAME.search(source) is not None and os.path.isfile(source)


RAW = Format("raw", is_raw, module="raw_reader", function="open_raw")
