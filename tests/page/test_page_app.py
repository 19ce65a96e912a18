"""The page as served to a browser and to Prometheus, with a server and its peers."""

import http.client
import json
import re
import socket
import threading
from contextlib import closing
from unittest.mock import Mock

import pytest
from kit.clocks import LoopTime
from kit.links import DeadLink

from tmrl_like.config.paths import keys_folder
from tmrl_like.errors import AddressInUseError, RefusedError
from tmrl_like.page.page_app import Page
from tmrl_like.page.watcher import Watcher
from tmrl_like.transport import KeyFolder, connect


def quiet_watcher():
    return Watcher(DeadLink(), {}, ())


def watcher_without_a_thread():
    watcher = quiet_watcher()
    watcher.session.close(0.0)
    return watcher


def invited(server, folder, role):
    """Return a watcher of a server on another machine, which this one has invited."""
    keys = KeyFolder(folder)
    keys.join(KeyFolder(keys_folder()).invite("tablet", (role,)))
    return Watcher(connect("zmq", "127.0.0.1", server.address[1], keys), {}, ())


def test_what_happened_before_the_page_began_is_not_told_as_if_it_happened_now():
    history = Watcher(DeadLink(), {}, [{"kind": "round", "learning": "too early"}]).history
    assert history.round["learning"] == "too early"
    assert "too early" not in [text for _, _, text in history.incidents]


def test_the_server_is_asked_at_once_and_often_while_a_browser_asks_and_rarely_afterwards(
    monkeypatch,
):
    watcher, clock, asked = watcher_without_a_thread(), LoopTime(), Mock(return_value=True)
    monkeypatch.setattr("tmrl_like.page.watcher.time", clock)
    watcher.session.wake = Mock(side_effect=lambda: watcher.on_tick(asked, True))

    def asked_within(seconds, browser=int):
        """Return how often the server is asked while a browser does something ten times a
        second.
        """
        asked.reset_mock()
        for _ in range(10 * seconds):
            clock.now += 0.1
            browser()
            watcher.on_tick(asked, True)
        return asked.call_count

    assert asked_within(20) <= 5
    clock.now += 0.5
    asked.reset_mock()
    watcher.workers()
    asked.assert_called_once()
    assert asked_within(10, watcher.workers) >= 20
    watcher.session.wake.assert_called_once_with()
    assert asked_within(6) >= 10  # somebody may still look
    assert asked_within(20) <= 5
    assert watcher.on_tick(asked, False) > 0.1


def test_a_server_that_is_lost_is_in_the_next_answer_and_its_workers_become_older():
    watcher = watcher_without_a_thread()
    for connected in (True, False):
        watcher.on_tick(lambda data: True, connected)
        run = json.loads(watcher.run())
        assert run["connected"] is connected
    assert [text for _, _, text in run["incidents"]][-1] == "no server answers"
    before, after = (json.loads(watcher.workers())["age_s"] for _ in range(2))
    assert 0 < before < after


@pytest.fixture(scope="module")
def page():
    with Page(quiet_watcher(), port=0) as page:
        yield page


def get(page, path, method="GET", **headers):
    connection = http.client.HTTPConnection(*page.address, timeout=20)
    with closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())


def polled(page, path):
    """Return what a browser is told."""
    status, text, headers = get(page, path)
    assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8")
    return json.loads(text)


def test_a_request_for_which_there_is_no_thread_is_one_line_and_the_next_is_answered(
    page, monkeypatch, caplog
):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError):
            get(page, "/")
    (line,) = caplog.messages
    assert line.startswith("the thread of the page's answer cannot be started: ")
    assert get(page, "/")[0] == 200


def test_the_page_brings_all_that_it_needs_and_nobody_else_may_have_it(page):
    status, text, headers = get(page, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert "access-control-allow-origin" not in headers
    needed = set(re.findall(r'(?:src|href)="([\w.]+)"', text))
    assert needed == {"page.js", "page.css"}
    assert {get(page, f"/{name}")[0] for name in needed} == {200}
    assert "http" not in text
    assert get(page, "/nothing")[0] == 404
    assert get(page, "/metrics", "POST")[0] == 501


def test_an_address_and_this_machines_names_are_answered_and_what_another_site_calls_it_is_not(
    page,
):
    for host in ("localhost", "127.0.0.1:7791", "[::1]:7791", "192.168.1.7", socket.gethostname()):
        assert get(page, "/metrics", Host=host)[0] == 200
    told = "this page answers to localhost, this machine's name or an address\n"
    for host in ("evil.example:7791", "127.0.0.1.evil.example", "localhost.evil", ""):
        for path in ("/", "/run", "/workers", "/metrics"):
            assert get(page, path, Host=host)[:2] == (421, told)


def test_a_port_that_is_taken_is_said_and_one_that_was_not_asked_for_is_replaced(page, monkeypatch):
    watcher, (_, taken) = quiet_watcher(), page.address
    told = r"port \d+ on 127.0.0.1 is taken: give the page another one \(--port\)"
    with pytest.raises(AddressInUseError, match=told):
        Page(watcher, port=taken)
    monkeypatch.setattr("tmrl_like.page.page_app.DEFAULT_PORT", taken)
    with Page(watcher) as other:
        assert get(other, "/")[0] == 200


def test_who_lets_others_look_is_told_what_they_see(caplog):
    with Page(quiet_watcher(), "0.0.0.0", 0):
        pass
    (line,) = [record.message for record in caplog.records if record.name == "tmrl_like.page"]
    assert line.startswith("without a key and unencrypted, anybody who can reach http://0.0.0.0:")


def test_a_browser_is_told_of_workers_and_training_and_prometheus_the_same(
    zmq_house, tmp_path, until
):
    server = zmq_house.server()
    worker, trainer = zmq_house.worker(name="arm"), zmq_house.trainer(training={"epochs": 1})
    zmq_house.start(worker.run, verbose=False)
    trainer.run()
    watcher = invited(server, tmp_path, "watcher")
    with Page(watcher, port=0) as page:
        until(lambda: polled(page, "/run")["round"])
        until(lambda: [w for w in polled(page, "/workers")["workers"] if w["returns"]])
        run, (seen,) = polled(page, "/run"), polled(page, "/workers")["workers"]
        assert 0 <= seen["age_s"] < 60
        assert seen["worker"] == "arm"
        assert seen["env_steps"] > 0
        assert run["round"]["training_steps_total"] == 20
        assert run["curves"]["return"][0]
        assert "connected to the server" in [text for _, _, text in run["incidents"]]
        metrics = get(page, "/metrics")[1]
        assert "tmrl_training_steps_total 20\n" in metrics
        assert 'tmrl_worker_env_steps_total{worker="arm"}' in metrics


def test_a_page_whose_key_may_not_look_ends_with_the_reason(zmq_house, tmp_path):
    watcher = invited(zmq_house.server(), tmp_path, "worker")
    with (
        Page(watcher, port=0) as page,
        pytest.raises(RefusedError, match="the key 'tablet' is not for a watcher"),
    ):
        page.serve_forever()
