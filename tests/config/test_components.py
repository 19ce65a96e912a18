import re
from pathlib import Path
from typing import Literal

import parts_for_tests as parts
import pytest
from kit.refusals import one_line

from tmrl_like.base.importing import import_object
from tmrl_like.config.components import check_value, resolve_component
from tmrl_like.config.document import Document, Location
from tmrl_like.errors import ConfigError

SPACES = ("observation_space", "action_space", "device")


def resolve(arguments, path="Agent", supplied=SPACES):
    data = {"part": {"class_path": f"parts_for_tests.{path}", "init_args": arguments}}
    return resolve_component(Document("x.yaml", data, {("part",): "x.yaml:7"}), ("part",), supplied)


def agent(**arguments):
    return resolve(arguments)("obs", "act")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"depth": 1.5}, "part.init_args.depth: expected a whole number, got 1.5"),
        ({"mode": "c"}, "part.init_args.mode: expected one of a, b, got 'c'"),
        (
            {"device": "cpu"},
            "part.init_args.device: is supplied when the object is made; leave it out here",
        ),
        (
            {"lr": {"class_path": "parts_for_tests.Net"}},
            "part.init_args.lr: expected a number, got {'class_path': 'parts_for_tests.Net'}",
        ),
        (
            {"net_cls": {"class_path": "parts_for_tests.Net", "init_arg": {}}},
            "part.init_args.net_cls.init_arg: there is no such key; did you mean init_args?",
        ),
        ({"options": {"period_s": 0}}, "part.init_args.options.period_s is 0; it must be positive"),
        (
            {"options": {"size": [1]}},
            "part.init_args.options.size: expected a list of a whole number or none, got [1]",
        ),
        (
            {"change": "parts_for_tests.Nett"},
            "part.init_args.change.class_path: parts_for_tests has no Nett; did you mean Net?",
        ),
        ({"change": 3}, "part.init_args.change: expected Change or none, got 3"),
    ],
)
def test_a_wrong_argument_is_one_line_with_place_key_and_what_was_expected(arguments, problem):
    with one_line("^" + re.escape(f"x.yaml:7: {problem}")):
        resolve(arguments)


def test_code_inside_arguments_becomes_what_the_annotation_asks_for():
    net = {"class_path": "parts_for_tests.Net", "init_args": {"width": 8}}
    made = agent(net_cls=net, net=net, extra={"deep": [net]})
    assert made.net_cls().width == 8
    assert isinstance(made.net, parts.Net)
    assert made.net.width == 8
    assert made.extra["deep"][0]().width == 8


def test_keys_with_values_become_the_dataclass_that_the_annotation_names():
    made = agent(options={"period_s": "1e-2", "names": ["a"], "size": [1, 2]})
    assert made.options == parts.Options(period_s=0.01, names=("a",), size=(1, 2))
    assert agent(options=None, limit=None).options is None


def test_objects_and_callables_may_be_named_by_their_path_alone():
    made = agent(
        net="parts_for_tests.Net",
        net_cls="parts_for_tests.Net",
        change="parts_for_tests.Doubled",
        options="parts_for_tests.Options",
    )
    kinds = [type(part) for part in (made.net, made.change, made.options)]
    assert kinds == [parts.Net, parts.Doubled, parts.Options]
    assert made.net_cls is parts.Net
    assert isinstance(agent(options={"net": "parts_for_tests.Net"}).options.net, parts.Net)


@pytest.mark.parametrize(
    "named", ["parts_for_tests.Sized", {"class_path": "parts_for_tests.Sized"}]
)
def test_what_is_called_without_arguments_is_given_all_of_them(named):
    with pytest.raises(ConfigError, match=r"make_net\.init_args\.size is missing: Sized needs it"):
        agent(make_net=named)
    assert agent(net_cls=named).net_cls is parts.Sized
    assert agent(make_net="parts_for_tests.SizedByItself").make_net().size == 3
    sized = {"class_path": "parts_for_tests.Sized", "init_args": {"size": 2}}
    assert agent(make_net=sized).make_net().size == 2


def test_a_missing_argument_is_named_unless_the_framework_supplies_it():
    assert resolve({}, "Sized", ("size",))(size=3).size == 3
    with pytest.raises(ConfigError, match=r"part\.init_args\.size is missing: Sized needs it"):
        resolve({}, "Sized", ())
    with pytest.raises(ConfigError, match=r"net\.init_args\.size is missing"):
        agent(net="parts_for_tests.Sized")


def test_a_class_that_takes_anything_takes_anything():
    assert resolve({"whatever": 3}, "Open")().anything == {"whatever": 3}


def test_nested_classes_can_be_named():
    assert import_object("parts_for_tests.Outer.Inner") is parts.Outer.Inner
    with pytest.raises(ConfigError, match="Outer has no Iner; did you mean Inner"):
        import_object("parts_for_tests.Outer.Iner")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("Agent", "expected an import path like module.Class, got 'Agent'"),
        ("parts_for_tests.constant", "is a int, no class or function"),
    ],
)
def test_what_cannot_be_imported_is_reported_in_one_line(path, problem):
    document = Document("x.yaml", {"part": {"class_path": path}})
    with one_line(problem):
        resolve_component(document, ("part",))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            "import nothing_of_that_name",
            "ModuleNotFoundError: No module named 'nothing_of_that_name'",
        ),
        ("x = = 1", "SyntaxError"),
        ("raise SystemExit", "SystemExit"),  # the last line of many a game
    ],
)
def test_a_users_module_that_fails_is_named_with_its_line(content, problem, tmp_path, monkeypatch):
    module = f"broken_{abs(hash(content))}"
    (tmp_path / f"{module}.py").write_text(f"# a comment\n{content}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with one_line(rf"importing {module} failed: {problem}.*{module}\.py:2\)"):
        import_object(f"{module}.Agent")


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (float, "inf", float("inf")),
        (Path, "a/b", Path("a/b")),
        (tuple[int, int], [1, 2], (1, 2)),
        (Literal["a", None], None, None),
        ("a forward reference", 3, 3),
    ],
)
def test_values_of_the_right_type_pass(annotation, value, expected):
    assert check_value(Location(Document("x"), ("k",)), annotation, value) == expected


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, True, "a whole number"),
        (str, 3, "text"),
        (float | Literal["all"], "none", "a number or all"),
        (tuple[int, ...], ["a"], "a list of a whole number"),
        (tuple[int, str, int], ["a"], "a list of a whole number, text, a whole number"),
    ],
)
def test_values_of_a_wrong_type_do_not(annotation, value, expected):
    with pytest.raises(ConfigError, match=f"k: expected {expected}, got"):
        check_value(Location(Document("x"), ("k",)), annotation, value)
