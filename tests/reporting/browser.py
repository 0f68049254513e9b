"""A headless Chromium, driven over its debugging pipe: no driver program, no network, no package beside Chromium."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--no-default-browser-check", "--hide-scrollbars", "--disable-extensions",
    "--remote-debugging-pipe",
)  # fmt: skip


def chromium() -> str | None:
    """Where Chromium is, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One tab. Use as a context."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands_out, self._commands = os.pipe()
        self._events, events_in = os.pipe()
        high = [fcntl.fcntl(pipe, fcntl.F_DUPFD, 50) for pipe in (commands_out, events_in)]

        def wire() -> None:  # Chromium reads its commands from descriptor 3 and answers on 4
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [str(chromium()), *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            preexec_fn=wire, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for pipe in high:
            os.close(pipe)
        os.close(commands_out)
        os.close(events_in)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        pages = [t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self._session = self.send("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._commands)
        os.close(self._events)
        self._profile.cleanup()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its answer; events that come before it are kept in `events`."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return dict(found["result"])
            self.events.append(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._events, 1 << 20)
            if not part:
                raise RuntimeError("Chromium ended")
            self._buffer += part
        text, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(text))

    def run(self, script: str) -> Any:
        """Run JavaScript in the page and return its value."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"])[:500])
        return found["result"].get("value")

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> float:
        """Open a file at this width, wait until the report has drawn its charts; return the seconds that took."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        self.resize(width, height)
        self.events.clear()
        began = time.monotonic()
        self.send("Page.navigate", url=path.resolve().as_uri())
        while time.monotonic() - began < 90:
            state = self.run("({...document.documentElement?.dataset, ready: document.readyState})") or {}
            drawn = "charts" in state and state["charts"] == state.get("drawn")
            if state.get("ready") == "complete" and (drawn or state.get("errors", "[]") != "[]"):
                break
            time.sleep(0.02)
        return time.monotonic() - began

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window's inside."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings on the console, exceptions, and requests for anything but the page since `open`."""
        self.run("0")
        found = []
        for event in self.events:
            method, about = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(f"exception: {about['exceptionDetails'].get('text')}")
            elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
                found.append(f"{about['type']}: {[a.get('value', a.get('description')) for a in about['args']]}")
            elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                found.append(f"log: {about['entry']['text']}")
            elif method == "Network.requestWillBeSent" and not about["request"]["url"].startswith(
                ("file:", "data:", "blob:")
            ):
                found.append(f"request: {about['request']['url'][:100]}")
        return found
