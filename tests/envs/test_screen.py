"""A machine without a screen: the tests that need one are skipped, and the last lines say so."""

from kit.pythons import python


def test_one_line_says_what_is_skipped_without_an_x_server_and_how_to_have_it(monkeypatch):
    monkeypatch.delenv("TMRL_LIKE_REQUIRE_SCREEN", raising=False)
    which = ("tests/envs/desktop/test_desktop_env.py", "-k", "window")
    out, _ = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *which, PATH="")
    (line,) = [line for line in out.splitlines() if "for want of a screen" in line]
    assert line.endswith(
        "tests were skipped for want of a screen (test_desktop_env): sudo apt-get install xvfb"
    )
