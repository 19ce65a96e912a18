"""The page in a real browser, a headless Chromium, if one is installed."""

import msgspec
import pytest
from chromium import PROGRAM, Chromium
from kit.links import DeadLink

from tmrl_like.page.page_app import Page
from tmrl_like.page.watcher import Watcher
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium (apt-get install chromium)"),
]


def view(watcher, number, *beats):
    sight = m.Sight(["t"], {"samples": 1}, [(0.1, beat) for beat in beats], [])
    watcher.on_message(m.View(number, 0), memoryview(msgspec.msgpack.encode(sight)), b"")


def test_a_browser_shows_the_fleet_the_curves_and_what_happened(tmp_path):
    records = [
        {"kind": "round", "time_s": k, "q_mean": k / 10, "learning": "learning"}
        for k in range(1, 50)
    ]
    watcher = Watcher(DeadLink(), {"title": "drone"}, records)
    with Page(watcher, port=0) as page, Chromium(page.url, tmp_path / "profile") as browser:
        browser.wait_for("typeof run !== 'undefined' && run !== null")
        well = Condition(env_steps=100, returns=(1.5, 2.25), time_step_s=0.05)
        ill = msgspec.structs.replace(well, alarm="<b>no</b> disk")
        for number in range(1, 4):
            view(watcher, number, *(m.Beat(f"w{i}", well) for i in range(299)), m.Beat("ill", ill))
        first = "document.querySelector('#workers tr')"
        assert browser.wait_for(f"{first} && {first}.cells[0].textContent") == "ill"
        assert browser.value(f"{first}.cells[1].textContent") == "alarm: <b>no</b> disk"
        assert browser.value(f"{first}.cells[9].textContent").split() == ["1.5", "2.25"]
        assert browser.value("$('more').textContent") == "200 more: filter by name or state"
        assert "3 of" not in browser.value("$('cards').textContent")
        browser.value("$('filter').value = 'w12'; $('filter').dispatchEvent(new Event('input'))")
        assert browser.value("document.querySelectorAll('#workers tr').length") == 11
        assert browser.value("$('learning').textContent") == "learning"
        browser.wait_for("$('incidents').textContent.includes('ill: <b>no</b> disk')")
        assert browser.value("document.querySelectorAll('.chart:not([hidden]) h3').length") == 2
        assert browser.faults() == []


def test_a_browser_shows_the_limit_that_was_in_force(tmp_path):
    name = "training_steps_per_env_step"
    records = [
        {"kind": "round", "time_s": 10.0 * k, name: 0.2, f"{name}_limit": limit}
        for k, limit in enumerate((0.5, 0.25), start=1)
    ]
    watcher = Watcher(DeadLink(), {"title": "drone"}, records)
    with Page(watcher, port=0) as page, Chromium(page.url, tmp_path / "profile") as browser:
        browser.wait_for("typeof run !== 'undefined' && run !== null")
        assert "0.2 / 0.25" in browser.value("$('cards').textContent")
        (legend,) = browser.value(
            "[...document.querySelectorAll('.chart:not([hidden]) .legend')]"
            ".map((legend) => legend.textContent).filter((text) => text)"
        )
        assert legend == "so far 0.2limit 0.25"
        assert browser.faults() == []


def test_shares_from_small_to_the_whole_and_large_numbers_have_no_exponents(tmp_path):
    watcher = Watcher(DeadLink(), {"title": "drone"}, [])
    with Page(watcher, port=0) as page, Chromium(page.url, tmp_path / "profile") as browser:
        browser.wait_for("typeof run !== 'undefined' && run !== null")
        shares = browser.value("[0, 1e-8, 5e-6, 0.004, 0.123, 0.996, 1].map(percent)")
        assert shares == ["0 %", "0.000001 %", "0.0005 %", "0.4 %", "12.3 %", "99.6 %", "100 %"]
        numbers = browser.value("[9999, 12345, 999600, 1.52e6, 1.3e9].map(short)")
        assert numbers == ["9999", "12.3 k", "1000 k", "1.52 M", "1300 M"]
