"""A headless Chromium, controlled directly through its debugging pipe, without driver or
package.
"""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys

from kit.waiting import until

PROGRAM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)

_AT_3_AND_4 = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for place, pipe in zip((3, 4), pipes):
    os.dup2(pipe, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Chromium:
    """A browser that shows one page. Use it as a context manager."""

    def __init__(self, url, folder, width=1400, height=1000):
        to_us, theirs_out = os.pipe()
        theirs_in, to_them = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={folder}",
        ]
        command = [
            str(PROGRAM),
            "--remote-debugging-pipe",
            *flags,
            f"--window-size={width},{height}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _AT_3_AND_4, str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._to_them, self._to_us = os.fdopen(to_them, "wb", 0), os.fdopen(to_us, "rb", 0)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.said = []  # events
        self._session = ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)
        self._call("Page.navigate", url=url)

    def _call(self, method, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._to_them.write(json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                data = self._to_us.read(1 << 20)
                assert data, "chromium has ended"
                self._buffer += data
            text, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.said.append(answer)

    def value(self, expression):
        """Return the value of a JavaScript expression."""
        result = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression, within_s=30.0):
        """Wait until an expression is true; return its value."""
        return until(lambda: self.value(expression), expression, within_s)

    def faults(self):
        """Return the page's exceptions and the errors in its console."""
        self.value("1")
        return [
            json.dumps(event["params"])
            for event in self.said
            if event.get("method") == "Runtime.exceptionThrown"
            or (
                event.get("method") == "Log.entryAdded"
                and event["params"]["entry"]["level"] == "error"
            )
        ]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._process.kill()
        self._process.wait()
        for pipe in (self._to_them, self._to_us):
            with contextlib.suppress(OSError):
                pipe.close()
