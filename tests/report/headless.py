"""A headless Chromium spoken to through a pipe: enough of its protocol to load a page and to look at it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.surroundings import environment

#: Where the browser is. ``required`` fails where there is none, ``none`` does without; unset, what is found is used.
VARIABLE = "RULESPACK_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: The file a command writes as a page.
Drawn = Callable[..., Path]
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    """The browser's path; None where there is none and none is required."""
    stated = os.environ.get(VARIABLE, "")
    if stated == "none":
        return None
    if stated not in ("", "required"):
        assert shutil.which(stated), f"{VARIABLE} names {stated}, which cannot be run"
        return stated
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    assert found or stated != "required", f"{VARIABLE} is required, and none of {', '.join(NAMES)} is installed"
    return found


class Browser:
    """One browser with an empty profile, ended when it is left."""

    def __init__(self, path: str, profile: Path) -> None:
        reads, self._write = os.pipe()
        self._read, writes = os.pipe()
        shell = f'exec "$@" 3<&{reads} 4>&{writes}'
        words = ["bash", "-c", shell, "bash", path, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            words,
            env=environment(),
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._buffer = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.call("Browser.close")
        self._process.wait(timeout=30)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events that come first are kept."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, method: str) -> dict[str, Any]:
        """The next event of this name, one that came already included."""
        while True:
            for position, event in enumerate(self.events):
                if event.get("method") == method:
                    return self.events.pop(position)
            self.events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._read, 1 << 16)
            assert more, "the browser ended"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    @contextmanager
    def page(self, file: Path, width: int, *, dark: bool = False, media: str = "screen") -> Iterator[Page]:
        """A file in a tab of this width, laid out for the medium and the colours a reader prefers."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        page.call("Page.navigate", url=file.as_uri())
        self.wait_for("Page.loadEventFired")
        yield page
        self.call("Target.closeTarget", targetId=target)


class Page:
    """One page that has loaded."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command to this page."""
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """What the console was told, and every error of loading and running the page."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed")
        return [json.dumps(event) for event in self._browser.events if event.get("method") in kinds]

    def requested(self) -> list[str]:
        """Every address the page asked for."""
        events = (event for event in self._browser.events if event.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in events]

    def pdf(self, file: Path) -> None:
        """The page as it is printed."""
        file.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"]))
