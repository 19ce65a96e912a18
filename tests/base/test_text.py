"""Text for human readers."""

from tmrl_like.base.gone import GONE
from tmrl_like.base.text import clock, counted, duration, name_of, one_line, suggestion


def test_a_line_has_no_line_ends_and_steers_no_terminal():
    assert one_line("a \n  b\x1b[2J") == "a b?[2J"
    assert one_line("two  words") == "two  words"
    assert one_line(ValueError("a\nb"), 12) == "ValueError: "
    assert one_line(ValueError()) == "ValueError"


def test_a_suggestion_is_the_nearest_word_or_all_of_them():
    assert suggestion("epoch", ["rounds", "epochs"]) == "did you mean epochs?"
    assert suggestion("zzz", ["rounds", "epochs"]) == "known are rounds, epochs"
    assert suggestion("zzz", []) == "there are none"


def test_a_name_of_an_earlier_version_names_what_serves_in_its_place(monkeypatch):
    monkeypatch.setitem(GONE, "epoch", "use rounds")
    assert suggestion("epoch", ["rounds", "epochs"]) == "an earlier version had it: use rounds"


def test_numbers_come_with_their_units():
    assert [counted(n, "step") for n in (0, 1, 2000)] == ["0 steps", "1 step", "2,000 steps"]
    assert [duration(s) for s in (0.0351, 1.5)] == ["35 ms", "1.5 s"]
    assert [clock(s) for s in (0, 61.9, 3725)] == ["0:00", "1:01", "1:02:05"]


def test_what_is_called_has_a_name():
    assert [name_of(int), name_of(int.bit_length), name_of(3)] == ["int", "int.bit_length", "3"]
