"""A headless Chromium for tests of pages, over its debugging pipe: what a page looks like, says and asks for.

Needs the browser alone. SAFEGEN_CHROMIUM names it where it is not on the path by one of its usual names.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-extensions",
    "--disable-sync", "--no-default-browser-check", "--password-store=basic", "--force-color-profile=srgb",
)  # fmt: skip
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowRight": 39, "ArrowDown": 40, "a": 65}
_CODES = {" ": "Space", "a": "KeyA"}
_FREE_FDS = 20  # above those that the browser wants its pipes at
_WAIT_S = 60.0


def find_chromium() -> str | None:
    """The command, or None where there is none."""
    named = os.environ.get("SAFEGEN_CHROMIUM")
    return named or next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One process with one tab; a context manager. console: what the page complained of. requests: its URLs."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._number = 0
        self._received = b""
        self._session: str | None = None
        self._loaded = False
        self.console: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Browser:
        self._folder = tempfile.TemporaryDirectory(prefix="safegen-browser-", ignore_cleanup_errors=True)
        theirs_in, self._to = _pipe()
        self._from, theirs_out = _pipe()
        start = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'  # the browser reads from 3 and writes to 4
        self._process = subprocess.Popen(
            ["bash", "-c", start, "bash", str(theirs_in), str(theirs_out), self._command, *_FLAGS,
             f"--user-data-dir={self._folder.name}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            self._attach()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _attach(self) -> None:
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def open(self, page: Path | str, *, width: int = 1280, scheme: Literal["light", "dark"] = "light") -> None:
        """A file or a URL, in a window of this width, until it has loaded."""
        self.console.clear()
        self.requests.clear()
        self.look(width=width, scheme=scheme)
        self._loaded = False
        self._send("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        deadline = time.monotonic() + _WAIT_S
        while not self._loaded:
            self._read(deadline)

    def look(self, *, width: int, scheme: Literal["light", "dark"] = "light", media: str = "") -> None:
        """media: "print", or the screen."""
        self._send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._send("Emulation.setEmulatedMedia", media=media, features=[feature])

    def evaluate(self, script: str) -> Any:
        """The JSON value of an expression."""
        found = self._send("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in found:
            raise AssertionError(json.dumps(found["exceptionDetails"], indent=1))
        return found["result"].get("value")

    def wait_for(self, condition: str, within_s: float = 20.0) -> None:
        """Until an expression is true. Raises AssertionError when it takes too long."""
        deadline = time.monotonic() + within_s
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"never came true: {condition}"
            time.sleep(0.02)

    def press_tab(self, *, back: bool = False) -> None:
        self.press("Tab", shift=back)

    def press(self, key: str, *, ctrl: bool = False, shift: bool = False) -> None:
        """One of the keys of `_KEYS`."""
        code = {"key": key, "code": _CODES.get(key, key), "windowsVirtualKeyCode": _KEYS[key]}
        modifiers = 2 * ctrl + 8 * shift
        text = {"Enter": "\r", " ": " "}.get(key, "") if not ctrl else ""
        self._send(
            "Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", modifiers=modifiers, text=text, **code
        )
        self._send("Input.dispatchKeyEvent", type="keyUp", modifiers=modifiers, **code)

    def type_text(self, text: str) -> None:
        """Into what has the focus."""
        self._send("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Of the whole page."""
        taken = self._send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    # --- the pipe -----------------------------------------------------------------------------------------------------

    def _send(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _WAIT_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _read(self, deadline: float) -> dict[str, Any]:
        """The next message; events are noted."""
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._from, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError(f"{self._command} does not answer (exit code {self._process.poll()})")
            self._received += chunk
        line, self._received = self._received.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.console.append(json.dumps(told))
        elif event == "Log.entryAdded":
            self.console.append(told["entry"]["text"])
        elif event == "Page.loadEventFired":
            self._loaded = True


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FREE_FDS) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
