"""Chromium, driven through a pipe by the DevTools protocol: https://chromedevtools.github.io/devtools-protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND"),
]


class Tab:
    """A page; `messages` are those of its console, and errors that nothing caught."""

    def __init__(self, send, receive):
        self._send, self._receive, self._number, self._session = send, receive, 0, None
        self.messages = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """Call a method of the protocol and return its result."""
        self._number += 1
        session = {} if self._session is None else {"sessionId": self._session}
        self._send({"id": self._number, "method": method, "params": params, **session})
        while (answer := self._next()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self):
        answer = self._receive()
        if answer.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(answer["params"])
        return answer

    def open(self, path, width=1400, dark=False):
        """Show a file in a window of a width; forget messages of the file before."""
        self.messages.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=f"file://{path}")
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def run(self, script):
        """Return the value of an expression, awaited."""
        how = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        answer = self.call("Runtime.evaluate", expression=script, **how)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point(self, x, y):
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key):
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)


@contextmanager
def browser(profile) -> Iterator[Tab]:
    """Start Chromium with a new profile, without a network, and end it."""
    (read_there, write_here), (read_here, write_there) = os.pipe(), os.pipe()

    def as_3_and_4():
        os.dup2(read_there, 3)
        os.dup2(write_there, 4)

    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
    # The protocol takes these two numbers; pass_fds would keep others.
    process = subprocess.Popen(command, preexec_fn=as_3_and_4, close_fds=False, stderr=subprocess.DEVNULL)
    os.close(read_there)
    os.close(write_there)
    with os.fdopen(write_here, "wb", 0) as sending, os.fdopen(read_here, "rb") as receiving:
        rest = bytearray()

        def receive():
            while b"\0" not in rest:
                rest.extend(receiving.read1(2**16))
            message, _, left = bytes(rest).partition(b"\0")
            rest[:] = left
            return json.loads(message)

        try:
            yield Tab(lambda message: sending.write(json.dumps(message).encode() + b"\0"), receive)
        finally:
            process.kill()
            process.wait()
