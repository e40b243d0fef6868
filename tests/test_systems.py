"""What POSIX promises suffices: fits without what Linux has beyond it, and one line on other systems."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import streampca
from streampca.readers import open_collection

# Hidden before anything is imported. Other packages have other ways on macOS, and may read /proc here.
WITHOUT_LINUX = """
import os, sys

for name in ("sched_getaffinity", "preadv", "pwritev", "posix_fadvise", "copy_file_range", "memfd_create", "O_TMPFILE",
             "O_DIRECT", "pidfd_open", "eventfd"):
    if hasattr(os, name):
        delattr(os, name)

def hide(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc", "/sys")):
        frame = sys._getframe(1)
        while frame is not None and not {"streampca", "site-packages"} & {*frame.f_code.co_filename.split("/")}:
            frame = frame.f_back
        if frame is not None and "site-packages" not in frame.f_code.co_filename:
            raise FileNotFoundError(2, "No such file or directory", arguments[0])

sys.addaudithook(hide)
"""
USED = """
import numpy as np
import streampca
from streampca.cli.commands import main
from streampca.machine import PeakMeter

assert PeakMeter().peak() is None
model = streampca.fit("x.npy", n_components=2, memory="64 MiB", output="m.zarr", checkpoint="ck")
model.write_scores("x.npy", "scores.npy", memory="64 MiB")
np.testing.assert_allclose(np.load("scores.npy"), model.transform(np.load("x.npy")), atol=1e-4)
sys.argv = ["streampca", "report", "m.zarr", "--collection", "x.npy", "-o", "r.html", "-q"]
main()
"""


@pytest.mark.slow
def test_fits_without_what_macos_lacks(here):
    np.save("x.npy", np.random.default_rng(0).random((60, 6, 7), dtype=np.float32))
    done = subprocess.run([sys.executable, "-c", WITHOUT_LINUX + USED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_files_are_read_without_preadv(here, monkeypatch):
    x = np.random.default_rng(0).random((60, 6, 7), dtype=np.float32)
    np.save("x.npy", x)
    monkeypatch.delattr(os, "preadv", raising=False)
    np.testing.assert_array_equal(open_collection("x.npy").read(slice(7, 50)), x[7:50].reshape(43, 42))


def test_other_systems_are_refused_on_import(monkeypatch):
    source = compile(Path(streampca.__file__).read_text(encoding="utf-8"), streampca.__file__, "exec")
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(ImportError, match=r"runs on Linux and macOS, and .* for 'nt'\. On Windows, .*wsl --install"):
        exec(source, {"__name__": "streampca"})  # noqa: S102 - our own
