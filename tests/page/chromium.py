"""A headless Chromium, controlled directly through its debugging pipe, without driver or
package.
"""

import itertools
import json
import shutil
import socket
import subprocess

from kit.waiting import until

PROGRAM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = (
    "--remote-debugging-pipe",
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1400,1000",
)


class Chromium:
    """A browser that shows one page. Use it as a context manager."""

    def __init__(self, url, folder):
        self._pipe, theirs = socket.socketpair()
        with theirs:  # the browser reads from 3 and writes to 4
            pipe = theirs.fileno()
            start = ("bash", "-c", f'exec "$@" 3<&{pipe} 4>&{pipe} >/dev/null 2>&1', "bash")
            self._process = subprocess.Popen(
                [*start, PROGRAM, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
                pass_fds=[pipe],
            )
        self._numbers, self._buffer = itertools.count(1), b""
        self._events, self._session = [], {}
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self._call("Page.navigate", url=url)

    def _call(self, method, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params} | self._session
        self._pipe.sendall(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self._events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self):
        while b"\0" not in self._buffer:
            data = self._pipe.recv(1 << 20)
            assert data, "chromium has ended"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def value(self, expression):
        """Return the value of a JavaScript expression."""
        result = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression):
        """Wait until an expression is true; return its value."""
        return until(lambda: self.value(expression), expression)

    def faults(self):
        """Return the page's exceptions and the errors in its console."""
        self.value("1")
        faults = []
        for event in self._events:
            entry = event["params"].get("entry", {})
            if event["method"] == "Runtime.exceptionThrown" or entry.get("level") == "error":
                faults.append(event["params"])
        return faults

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._process.kill()
        self._process.wait()
        self._pipe.close()
