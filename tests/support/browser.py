"""Headless Chromium, driven over its debugging pipe: no port, no driver program, no package.

One ``Browser`` is one process with a profile of its own; ``open`` loads a page of the disk and returns it.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

TIMEOUT_S = 30
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
#: Chromium reads commands from descriptor 3 and writes to 4.
_WIRE = "import os, sys; a = sys.argv; os.dup2(int(a[1]), 3); os.dup2(int(a[2]), 4); os.execv(a[3], a[3:])"
_KEY_CODES = {
    "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "Enter": 13, "Escape": 27, "Tab": 9,
}  # fmt: skip


def chromium() -> str:
    """Path of the browser; the target ``chromium`` of the Makefile installs it."""
    found = shutil.which("chromium")
    assert found, "there is no chromium on the path; `make chromium` installs it"
    return found


class Browser:
    """A running Chromium."""

    def __init__(self, profile: Path) -> None:
        read_commands, self._commands = _pipe()
        self._answers, write_answers = _pipe()
        arguments = [chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WIRE, str(read_commands), str(write_answers), *arguments],
            pass_fds=(read_commands, write_answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._number = 0
        self._rest = b""
        self.events: list[dict] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        try:
            self.send("Browser.close")
            self._process.wait(TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait(TIMEOUT_S)
            os.close(self._commands)
            os.close(self._answers)

    def send(self, method: str, session: str = "", **parameters) -> dict:
        """Send a command, and return its answer; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method: str) -> dict:
        """Wait for an event that was not seen yet."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            for number, event in enumerate(self.events):
                if event.get("method") == method:
                    return self.events.pop(number)
            self.events.append(self._read(deadline))

    def _read(self, deadline: float) -> dict:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            data = os.read(self._answers, 1 << 16)
            assert data, "the browser ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path, *, width: int = 1280, height: int = 900, **media: str) -> Page:
        """Load a file into a page of its own; ``media`` are features such as ``prefers_color_scheme``."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        page.media(**media)
        page.send("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")
        return page


class Page:
    """One loaded page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def send(self, method: str, **parameters) -> dict:
        """Send a command to this page."""
        return self._browser.send(method, self._session, **parameters)

    def media(self, *, media: str = "", **features: str) -> None:
        """Emulate what a person prefers."""
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", media=media, features=listed)

    def js(self, expression: str):
        """Return the value of an expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press one key."""
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        code = _KEY_CODES.get(key, ord(key[0].upper()) if key.isalpha() and len(key) == 1 else 0)
        parts = {"key": key, "windowsVirtualKeyCode": code} | ({"text": text} if text else {})
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **parts)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Type text into what has the focus."""
        self.send("Input.insertText", text=text)

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the pointer, and click."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of the page as PNG."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self) -> list[str]:
        """Return what the page wrote to its console or threw, and what the browser refused it."""
        self.js("0")  # whatever happened before is in the pipe now
        found = []
        for event in self._browser.events:
            if event.get("sessionId") == self._session:
                parameters = event["params"]
                if event["method"] == "Log.entryAdded":
                    found.append(parameters["entry"]["text"])
                elif event["method"] == "Runtime.exceptionThrown":
                    found.append(parameters["exceptionDetails"]["text"])
                elif event["method"] == "Runtime.consoleAPICalled":
                    found.append(str(parameters["args"]))
        return found

    def requests(self) -> list[str]:
        """Return the address of everything that the page asked for."""
        self.js("0")
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event.get("method") == "Network.requestWillBeSent"
        ]


def _pipe() -> tuple[int, int]:
    """Return a pipe whose ends are no descriptor below 10."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]
