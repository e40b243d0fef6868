"""A command as ``python -m streampca`` carries it out, in a process whose memory another one watches.

    python benchmarks/metered.py PIPE fit pictures.npy -k 20 -o model.zarr

PIPE is the number of an open pipe that the process is asked and answers by: names of modules to import come first, and
then what it holds goes back; names of the modules that the command loaded follow, and it waits to be let go.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import runpy
import socket
import sys
import time
from pathlib import Path

from fresh import status_bytes


def main() -> None:
    """Import, tell what that took, run the command, and tell what it loaded."""
    _, descriptor, *words = sys.argv
    link = socket.socket(fileno=int(descriptor)).makefile("rw")
    for name in json.loads(link.readline()):
        with contextlib.suppress(Exception):  # names that only the program knows
            importlib.import_module(name)
    from streampca.machine import hand_back

    gc.collect()
    hand_back()
    began = time.perf_counter()
    print(status_bytes("VmRSS"), file=link, flush=True)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    sys.argv = ["streampca", *words]
    try:
        runpy.run_module("streampca", run_name="__main__")
    finally:
        print(json.dumps([time.perf_counter() - began, list(sys.modules)]), file=link, flush=True)
        link.readline()


if __name__ == "__main__":
    main()
