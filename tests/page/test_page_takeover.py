"""A browser drives a worker: only who has the page's secret, only where the page was started for it."""

import asyncio
import http.client
import json
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from chromium import PROGRAM, Chromium
from quiet import QuietLink

from tmrl_like.page.app import Page, application
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


LEFT = ["Drive", "w1", 7, 12.5, ["left"]]


def post(page, body, token=None, **how):
    token = page.url.partition("#")[2] if token is None else token
    connection = http.client.HTTPConnection(*page.address, timeout=20)
    with closing(connection):
        connection.request("POST", "/drive", body, {"Authorization": f"Bearer {token}"}, **how)
        return connection.getresponse().status


def test_what_the_page_sends_goes_to_the_server(page, link, until):
    assert post(page, json.dumps(LEFT)) == 204
    assert post(page, json.dumps([*LEFT[:4], [], True])) == 204
    until(lambda: len(link.drives) == 2)
    assert link.drives == [m.Drive("w1", 7, 12.5, ("left",)), m.Drive("w1", 7, 12.5, gives_back=True)]


def test_who_does_not_know_the_pages_secret_does_not_drive(page, link):
    for wrong in ("", "x", page.url.partition("#")[2][:-1], "\xe9"):
        assert post(page, json.dumps(LEFT), wrong) == 403
    with Page(Watcher(Link(), "nowhere", {}, ()), port=0) as other:  # started without --operator
        assert other.url.endswith("/")
        assert post(other, json.dumps(LEFT)) == 404
    assert not link.drives


@pytest.mark.parametrize("is_chunked", [False, True])
def test_what_is_no_drive_goes_no_further(page, link, is_chunked):
    for body, status in (
        (b"{", 400),
        (b"", 400),
        (b"\xff\xfe", 400),
        (json.dumps(LEFT[:2]).encode(), 400),
        (json.dumps([*LEFT[:4], ["k"] * 17]).encode(), 400),
        (b" " * 5000, 413),
    ):
        sent = (body[i : i + 1000] for i in range(0, len(body), 1000)) if is_chunked else body
        assert post(page, sent, encode_chunked=is_chunked) == status
    assert not link.drives


def test_no_more_browsers_than_twenty_look_though_all_come_at_once(watcher):
    seen = []

    async def come(app):
        async def receive():
            await asyncio.sleep(0)
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            if message["type"] == "http.response.start":
                seen.append((message["status"], len(watcher.browsers)))
                for _ in range(100):  # the others come meanwhile
                    await asyncio.sleep(0)
                raise OSError  # it is gone

        scope = {"type": "http", "method": "GET", "path": "/events", "headers": [(b"host", b"localhost")]}
        await app(scope | {"query_string": b"", "asgi": {"spec_version": "2.4"}}, receive, send)

    async def all_of_them():
        app = application(watcher)
        return await asyncio.gather(*(come(app) for _ in range(25)), return_exceptions=True)

    asyncio.run(all_of_them())
    assert sorted(status for status, _ in seen) == [200] * 20 + [503] * 5
    assert max(browsers for _, browsers in seen) == 20
    assert not watcher.browsers


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
        see(m.Beat("w1"), m.Beat("w2", may_be_driven=True, driver="operator desk", up_s=7.5, hand=9))
        browser.wait_for("!$('takeover').hidden")
        assert browser.value("[...$('takeover').firstChild.options].map((o) => o.value)") == ["w2"]
        states = "[...document.querySelectorAll('#workers tr')].map((row) => row.cells[1].textContent)"
        assert "operator desk has taken over" in browser.value(states)
        press(browser, "keyDown", "ArrowLeft")
        button, said = "$('takeover').children[1]", "$('takeover').children[2].textContent"
        assert browser.value(said) == "operator desk drives w2 and has not given back"
        assert browser.value(f"{button}.disabled")
        see(m.Beat("w2", may_be_driven=True, driver="policy", up_s=8.5))
        browser.wait_for(f"!{button}.disabled")
        assert not link.drives
        browser.value(f"{button}.click()")
        assert "it does not obey yet" in browser.value(said)
        for key in ("ArrowLeft", "w"):
            press(browser, "keyDown", key)
        until(lambda: link.drives and link.drives[-1].keys == ("left", "w"))
        press(browser, "keyUp", "ArrowLeft")
        until(lambda: link.drives[-1].keys == ("w",))
        so_far = len(link.drives)
        until(lambda: len(link.drives) > so_far + 2)  # said again and again
        press(browser, "keyDown", "Control", modifiers=2)  # the end of "w" may be the browser's now
        until(lambda: link.drives[-1].keys == ())
        press(browser, "keyDown", "Escape")
        until(lambda: link.drives[-1].gives_back)
        (hand,) = {drive.hand for drive in link.drives}
        assert hand > 0
        assert {(drive.worker, drive.heard_s) for drive in link.drives} == {("w2", 8.5)}
        assert browser.value(f"{button}.textContent") == "take over"
        browser.value(f"{button}.click()")
        see(m.Beat("w2", may_be_driven=True, driver="operator lab", up_s=9.5, hand=hand))  # his own
        until(lambda: link.drives[-1].heard_s == 9.5)
        see(m.Beat("w2", may_be_driven=True, driver="operator lab", up_s=10.5, hand=hand + 1))  # another tab was faster
        browser.wait_for(f"{said} === 'operator lab drives w2 and has not given back'")
        see(m.Beat("w2", may_be_driven=True, driver="policy", up_s=11.5))
        assert browser.faults() == []
        browser.value("location.hash = '#wrong'")
        browser.wait_for(f"!{button}.disabled")
        browser.value(f"{button}.click()")
        browser.wait_for(f"{said}.startsWith('to drive, open the whole address')")


@pytest.mark.parametrize(("options", "problem"), [((), "needs an operator's key"), (("--bind", "0.0.0.0"), "anybody")])
def test_a_page_that_could_let_others_drive_is_not_started(options, problem, tmp_path, command_line, capsys):
    folder = tmp_path / "keys"
    if not options:
        folder = tmp_path / "tablet"
        KeyFolder(folder).join(KeyFolder(tmp_path / "keys").invite("tablet", ("watcher",)))
    drone = str(Path(__file__).parents[2] / "config" / "drone.yaml")
    assert command_line("page", drone, "--operator", "--server.keys_dir", str(folder), *options) == 2
    assert problem in capsys.readouterr().err
