"""Headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
"""Where Chromium is, ``None`` without it."""

SECONDS = 30.0


class Browser:
    """A window of this width and height."""

    def __init__(self, address: str, width: int, height: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._ids = count(1)
        self._socket = self._run(self._connect(address))
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Return the answer to a command."""
        return self._run(self._call(method, parameters))

    def open(self, page: Path | str) -> None:
        """Open a file, or the page of an address, and wait until it is loaded."""
        address = page if isinstance(page, str) else page.as_uri()
        self.call("Page.navigate", url=address)
        limit = time.monotonic() + SECONDS
        while self.value("document.URL") != address or (
            self.value("document.readyState") != "complete"
        ):
            assert time.monotonic() < limit, f"{page} is not loaded"
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def screenshot(self, path: Path, selector: str | None = None) -> None:
        """Write the visible part of the page, or one of its elements, as a PNG."""
        options: dict[str, Any] = {}
        if selector is not None:
            place = f"document.querySelector('{selector}').getBoundingClientRect().toJSON()"
            clip = {key: self.value(place)[key] for key in ("x", "y", "width", "height")}
            options = {"clip": clip | {"scale": 1}, "captureBeyondViewport": True}
        answer = self.call("Page.captureScreenshot", **options)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        self._run(self._close())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, SECONDS))

    async def _connect(self, address: str) -> Any:
        from tornado.websocket import websocket_connect

        return await websocket_connect(address, max_message_size=1 << 28)

    async def _close(self) -> None:
        self._socket.close()  # writes: outside the loop it would start another

    async def _call(self, method: str, parameters: dict[str, Any]) -> Any:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.write_message(json.dumps(message))
        while True:  # events come in between
            answer = json.loads(await self._socket.read_message())
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]


@contextmanager
def chromium(width: int, height: int) -> Iterator[Browser]:
    """Start Chromium with one window."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        port = ["--remote-debugging-port=0", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [CHROMIUM, *options, *port, "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            browser = Browser(_address(Path(profile) / "DevToolsActivePort"), width, height)
            yield browser
            browser.close()
        finally:
            process.terminate()
            process.wait(SECONDS)


def _address(file: Path) -> str:
    limit = time.monotonic() + SECONDS
    while time.monotonic() < limit:
        if file.exists() and (lines := file.read_text().split()):
            with urlopen(f"http://127.0.0.1:{lines[0]}/json/list") as answer:
                pages = [each for each in json.load(answer) if each["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise TimeoutError("Chromium does not start")
