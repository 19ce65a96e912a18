"""A browser drives a worker: only from our page, only where the page was started for it."""

import http.client
import json
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from chromium import PROGRAM, Chromium
from quiet import QuietLink

from tmrl_like.page.app import Page
from tmrl_like.page.watcher import Watcher
from tmrl_like.transport import KeyFolder
from tmrl_like.wire import messages as m


class Link(QuietLink):
    """Lets the watcher in, and keeps what it sends."""

    def __init__(self):
        super().__init__()
        self.drives, self._waiting = [], []

    def send(self, data):
        message = m.decode(data)[0]
        if isinstance(message, m.Hello | m.Beat):
            self._waiting.append(m.encode(m.Welcome(1) if isinstance(message, m.Hello) else m.Beat()))
            self.wake()
        if isinstance(message, m.Drive):
            self.drives.append(message)
        return True

    def receive(self, timeout_s):
        if not self._waiting:
            super().receive(timeout_s)
        return self._waiting.pop() if self._waiting else None


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def watcher(link, until):
    watcher = Watcher(link, "nowhere", {"title": "run", "asked_ratio": None}, (), may_drive=True)
    until(lambda: watcher.session.connected)
    return watcher


@pytest.fixture
def page(watcher):
    with Page(watcher, port=0) as page:
        yield page


OURS = {"Content-Type": "application/json"}
WISH = {"worker": "w1", "keys": ["left"]}


def post(page, body, **headers):
    host = "{}:{}".format(*page.address)
    connection = http.client.HTTPConnection(*page.address, timeout=20)
    with closing(connection):
        connection.request("POST", "/drive", body, {"Origin": f"http://{host}", "Host": host} | OURS | headers)
        return connection.getresponse().status


def test_what_the_page_sends_goes_to_the_server(page, link, until):
    assert post(page, json.dumps(WISH)) == 204
    assert post(page, json.dumps(WISH | {"keys": [], "gives_back": True})) == 204
    until(lambda: len(link.drives) == 2)
    assert link.drives == [m.Drive("w1", ("left",)), m.Drive("w1", gives_back=True)]


def test_no_other_site_drives(page, link):
    for headers in ({"Origin": "http://evil.example"}, {"Origin": ""}, {"Content-Type": "text/plain"}):
        assert post(page, json.dumps(WISH), **headers) == 403
    for body, status in (
        ("{", 400),
        (json.dumps({"worker": "w1", "keys": ["k"] * 17}), 400),
        (json.dumps(WISH | {"driver": "me"}), 400),
        (b"\xff\xfe", 400),
        ("", 413),
        (" " * 5000, 413),
    ):
        assert post(page, body) == status
    assert not link.drives


def test_a_page_that_was_not_started_for_it_does_not_drive(page, link, watcher):
    watcher.may_drive = False
    assert post(page, json.dumps(WISH)) == 403
    assert not link.drives


@pytest.mark.long
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium (apt-get install chromium)")
def test_somebody_takes_over_in_a_browser_holds_keys_and_gives_back(page, link, watcher, tmp_path, until):
    def press(browser, kind, key, modifiers=0):
        browser._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=modifiers)

    def see(*beats):
        sight = m.Sight(["t"], {"samples": 1}, [(0.1, beat) for beat in beats], [])
        watcher.on_message(m.View(1, 0), memoryview(msgspec.msgpack.encode(sight)))

    with Chromium(page.url, tmp_path / "profile") as browser:
        browser.wait_for("typeof run !== 'undefined' && run !== null")
        until(lambda: watcher.browsers)
        see(m.Beat("w1"))
        browser.wait_for("!!document.querySelector('#workers tr')")
        assert browser.value("$('takeover').hidden")
        see(m.Beat("w1"), m.Beat("w2", may_be_driven=True, driver="operator desk"))
        browser.wait_for("!$('takeover').hidden")
        assert browser.value("[...$('takeover').firstChild.options].map((o) => o.value)") == ["w2"]
        states = "[...document.querySelectorAll('#workers tr')].map((row) => row.cells[1].textContent)"
        assert "operator desk has taken over" in browser.value(states)
        press(browser, "keyDown", "ArrowLeft")
        assert not link.drives
        browser.value("$('takeover').children[1].click()")
        for key in ("ArrowLeft", "w"):
            press(browser, "keyDown", key)
        until(lambda: link.drives and link.drives[-1].keys == ("left", "w"))
        press(browser, "keyUp", "ArrowLeft")
        until(lambda: link.drives[-1].keys == ("w",))
        said = len(link.drives)
        until(lambda: len(link.drives) > said + 2)  # said again and again
        press(browser, "keyDown", "Control", modifiers=2)  # the end of "w" may be the browser's now
        until(lambda: link.drives[-1].keys == ())
        press(browser, "keyDown", "Escape")
        until(lambda: link.drives[-1].gives_back)
        assert {drive.worker for drive in link.drives} == {"w2"}
        assert browser.value("$('takeover').children[1].textContent") == "take over"
        assert browser.faults() == []


@pytest.mark.parametrize(("options", "problem"), [((), "needs an operator's key"), (("--bind", "0.0.0.0"), "anybody")])
def test_a_page_that_could_let_others_drive_is_not_started(options, problem, tmp_path, command_line, capsys):
    folder = tmp_path / "keys"
    if not options:
        folder = tmp_path / "tablet"
        KeyFolder(folder).join(KeyFolder(tmp_path / "keys").invite("tablet", ("watcher",)))
    drone = str(Path(__file__).parents[2] / "config" / "drone.yaml")
    assert command_line("page", drone, "--operator", "--server.keys_dir", str(folder), *options) == 2
    assert problem in capsys.readouterr().err
