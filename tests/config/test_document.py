import re

import pytest
from kit.refusals import one_line

from tmrl_like.config.document import parse_document, parse_value


def test_a_key_in_a_list_knows_its_line():
    assert parse_document("a:\n  - b: 2\n", "x.yaml").where(("a", 0, "b")) == "x.yaml:2"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("-2.5E+4", -25000.0), ("3", 3), ("1e", "1e")],
)
def test_numbers_are_numbers_with_or_without_a_point(text, value):
    assert parse_document(f"a: {text}", "x").data == {"a": value}
    assert parse_value(text) == value


def test_a_value_of_the_command_line_that_is_not_yaml_is_text():
    assert parse_value("2026-13-01") == "2026-13-01"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1, 2", "x.yaml:1: is not valid YAML"),
        ("a: 1\n b: 2", "x.yaml:2: is not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3: is not valid YAML: the key a is there twice"),
        ("a: !!python/object/apply:os.system [ls]", "x.yaml:1: is not valid YAML"),
        ("- a\n- b\n", "x.yaml: expected keys with values"),
        ("a: &x [*x]", "x.yaml"),
        ("a: \x00", "x.yaml: is not valid YAML"),
        ("\na: !!bool maybe", "x.yaml:2: is not valid YAML: 'maybe' is no bool"),
        ("a: 2026-13-01", "x.yaml:1: is not valid YAML: '2026-13-01' is no timestamp"),
        ("? [a]\n: 1", "x.yaml:1: is not valid YAML: a key must be a word"),
        (
            "a:\n\tb: 1",
            "x.yaml:2: is not valid YAML: found character '\\t' that cannot start any token "
            "(indent by spaces",
        ),
    ],
)
def test_what_is_not_yaml_is_refused_in_one_line_with_its_number(text, problem):
    with one_line("^" + re.escape(problem)):
        parse_document(text, "x.yaml")


def test_an_empty_file_is_an_experiment_without_keys():
    assert parse_document("# nothing\n", "x").data == {}


def test_merged_keys_are_not_duplicates():
    text = "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\n"
    assert parse_document(text, "x").data["other"] == {"a": 1, "b": 3}
