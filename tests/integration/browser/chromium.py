"""A headless Chromium that tests talk to over a pipe: open a page, ask it, take its picture.

Rule 1: nothing is skipped: without a Chromium the tests fail and say how to get one.
Rule 2: one browser serves all tests; each page it opens has its own size and colour scheme.
Rule 3: whatever the browser complains about, and whatever a page asks the network for, is kept.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ANSWER_TIMEOUT_S = 60
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",  # Tests run as root in containers, and the pages are our own.
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-default-browser-check",
)
# The browser reads commands from descriptor 3 and answers on 4.
ON_PIPES = 'exec "$@" 3<&"$COMMANDS" 4>&"$ANSWERS"'


def program() -> str:
    """The browser of this machine."""
    wanted = (os.environ.get("CHROMIUM", ""), *PROGRAMS)
    found = next(filter(None, map(shutil.which, wanted)), None)
    assert found, "there is no Chromium here: run tests/integration/browser/install_chromium.sh"
    return found


@dataclass
class Page:
    """A page that has been opened."""

    browser: Browser
    session: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    is_loaded: bool = False

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.browser.call(
            "Runtime.evaluate",
            session=self.session,
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 900) -> None:
        """Make the window so wide and so high."""
        self.browser.call(
            "Emulation.setDeviceMetricsOverride",
            session=self.session,
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def look(self, *, dark: bool, on_paper: bool = False) -> None:
        """Show the page as somebody sees it who likes it light or dark, or prints it."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.call(
            "Emulation.setEmulatedMedia",
            session=self.session,
            media="print" if on_paper else "screen",
            features=[scheme],
        )

    def picture(self) -> bytes:
        """A PNG of what is in the window."""
        taken = self.browser.call("Page.captureScreenshot", session=self.session)
        return base64.b64decode(taken["data"])

    def hear(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self.is_loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.consoleAPICalled":
                self.complaints.append(str(params["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])


class Browser:
    """One process. Commands go in and answers come out as JSON, each with a NUL behind it."""

    def __init__(self, home: Path) -> None:
        commands, self._commands = _pipe()
        self._answers, answers = _pipe()
        self.log = home / "chromium.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", ON_PIPES, "bash", program(), *OPTIONS, f"--user-data-dir={home}"],
                env={**os.environ, "COMMANDS": str(commands), "ANSWERS": str(answers)},
                pass_fds=(commands, answers),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(commands)
        os.close(answers)
        self._unread = b""
        self._number = 0
        self._pages: dict[str, Page] = {}

    def call(self, method: str, *, session: str = "", **params: Any) -> dict[str, Any]:
        """Do this, and return the answer; what happens meanwhile is told to the pages."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if session:
            command["sessionId"] = session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            said = self._next(deadline_s)
            if said.get("id") == self._number:
                assert "error" not in said, f"{method}: {said['error']}"
                result: dict[str, Any] = said["result"]
                return result
            self._tell(said)

    def _next(self, deadline_s: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            wait_s = max(0.0, deadline_s - time.monotonic())
            ready = select.select([self._answers], [], [], wait_s)[0]
            received = os.read(self._answers, 1 << 20) if ready else b""
            assert received, f"Chromium says nothing: {self.log.read_text()[-2000:]}"
            self._unread += received
        message, self._unread = self._unread.split(b"\0", 1)
        said: dict[str, Any] = json.loads(message)
        return said

    def _tell(self, said: dict[str, Any]) -> None:
        page = self._pages.get(said.get("sessionId", ""))
        if page is not None:
            page.hear(said["method"], said["params"])

    @contextmanager
    def page(self, address: str, *, width: int = 1280) -> Iterator[Page]:
        """Open an address in a window of this width; the page is loaded when it is handed out."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        page = Page(self, attached["sessionId"])
        session = page.session
        page.resize(width)
        page.look(dark=False)
        self._pages[session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session=session)
        try:
            self.call("Page.navigate", session=session, url=address)
            deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
            while not page.is_loaded:
                self._tell(self._next(deadline_s))
            # Two frames later everything has been drawn, and complained about.
            page.ask("new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")
            yield page
        finally:
            del self._pages[session]
            self.call("Target.closeTarget", targetId=target)

    def close(self) -> None:
        # A browser whose pipe ends ends, too, with all of its processes.
        os.close(self._commands)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._answers)


def _pipe() -> tuple[int, int]:
    """Both ends away from the descriptors that the shell puts them on."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
