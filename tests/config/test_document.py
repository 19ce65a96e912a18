import re

import pytest
from kit.refusals import one_line

from tmrl_like.config.document import Document, parse_document, parse_value, split_overrides
from tmrl_like.errors import ConfigError


def test_each_key_knows_its_line():
    document = parse_document("a: 1\nb:\n  c:\n    - d: 2\n", "x.yaml")
    assert document.where(("a",)) == "x.yaml:1"
    assert document.where(("b", "c", 0, "d")) == "x.yaml:4"
    assert document.where(("b", "c", "missing")) == "x.yaml:3"
    assert document.where(("missing",)) == "x.yaml"


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


def test_overrides_are_distinguished_from_the_commands_own_arguments():
    arguments = [
        "x.yaml",
        "--trainer.epochs",
        "-3",
        "--log-level",
        "debug",
        "--run_name=r",
        "--server.port=1",
    ]
    overrides, others = split_overrides(arguments, ["run_name"])
    assert overrides == [
        (("trainer", "epochs"), "-3"),
        (("run_name",), "r"),
        (("server", "port"), "1"),
    ]
    assert others == ["x.yaml", "--log-level", "debug"]


def test_an_override_without_a_value_is_refused():
    with pytest.raises(ConfigError, match=r"--a\.b needs a value"):
        split_overrides(["--a.b", "--c.d=1"], [])


def test_an_override_below_a_plain_value_is_refused():
    document = Document("x", {"a": 1})
    with pytest.raises(ConfigError, match="a is 1, which has no keys"):
        document.override(("a", "b"), 2)
