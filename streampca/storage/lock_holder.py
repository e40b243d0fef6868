"""`Holder`: who holds a lock, as its file or object says: process, host, time, and job of a batch system."""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from ..errors import readable
from ..machine import is_running

LONGEST = 400  # bytes of a signature
_SIGNATURE = re.compile(r"(\d{1,10}) (\S*)(?: (\d{1,11}) (\S+) (\d{1,10}) (\S+) (\S+))?")


@dataclass(frozen=True)
class Holder:
    """Process that holds a lock.

    Attributes
    ----------
    pid, host
        Process and its host.
    since : int
        Time when it took the lock, in seconds of the epoch; 0 if it is not known.
    job : str
        Job of SLURM, and task of its array; ``-`` if there is none.
    restarts : int
        Number of times that the job was requeued.
    nonce : str
        Random text, by which two locks of one process differ.
    space : str
        Start of the system and its space of process numbers, of which the containers of a host can have one each; ``-``
        if it is not known.
    """

    pid: int
    host: str
    since: int = 0
    job: str = "-"
    restarts: int = 0
    nonce: str = "-"
    space: str = "-"

    @classmethod
    def here(cls) -> Self:
        """Describe this process."""
        job, task = (os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID"))
        name = f"{job}_{task}" if job and task else job
        restarts = os.environ.get("SLURM_RESTART_COUNT", "")
        return cls(
            os.getpid(),
            socket.gethostname(),
            int(time.time()),
            name if re.fullmatch(r"[\w.-]+", name) else "-",
            int(restarts) if restarts.isdecimal() else 0,
            uuid.uuid4().hex,
            _space(),
        )

    @classmethod
    def of(cls, signature: bytes) -> Self | None:
        """Read a signature; None if it is none, or empty."""
        match = _SIGNATURE.fullmatch(signature.decode(errors="replace")) if len(signature) <= LONGEST else None
        if match is None:
            return None
        pid, host, since, job, restarts, nonce, space = match.groups()
        return cls(int(pid), host, *((int(since), job, int(restarts), nonce, space) if since else ()))

    @property
    def signature(self) -> bytes:
        """Signature, as it is stored."""
        return f"{self.pid} {self.host} {self.since} {self.job} {self.restarts} {self.nonce} {self.space}".encode()

    @property
    def is_past(self) -> bool:
        """True of a process that has ended: of this host, or of an earlier run of the job that this process belongs to.

        A batch system ends a job before it starts it again, perhaps on another host.
        """
        now = Holder.here()
        if self.space == now.space != "-":
            return not is_running(self.pid, self.since)
        return self.job == now.job != "-" and self.restarts < now.restarts

    def __str__(self) -> str:
        if not self.host:
            return "another process"
        job = "" if self.job == "-" else f", job {self.job}"
        since = f", since {datetime.fromtimestamp(self.since, UTC):%Y-%m-%d %H:%M:%S} UTC" if self.since else ""
        # The signature is another's text: make it safe to print.
        return readable(f"process {self.pid} on {self.host}{job}{since}")


def _space() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux: the machine, without containers
        return f"{uuid.getnode():x}"


def gone(subject: str) -> str:
    """Return a message on an output whose lock another process has taken over and removed, with the remedy."""
    return (
        f"{subject} may have been written by another process, as the lock of this one is gone; look at what is there, "
        "and run this again to replace it."
    )


def refusal(subject: str, signature: bytes) -> str:
    """Return a message that names the holder of a lock, with the remedy."""
    who = Holder.of(signature) or "another process"
    return f"{subject} is being written by {who}; wait until it ends, or end it, or choose another place."
