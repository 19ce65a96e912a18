"""The tables on the environments' pages and at the top of their files match the environments that
the shipped experiments make.
"""

import ast
import re
import sys
from pathlib import Path
from pydoc import locate

import numpy as np
import pytest
from gymnasium import spaces
from kit.my_game import write_my_game

from tmrl_like import load_experiment
from tmrl_like.config.document import shipped
from tmrl_like.errors import MissingExtraError

ROOT = Path(__file__).parents[1]
ENVS = ROOT / "tmrl_like" / "envs"
PAGES = sorted((ROOT / "docs" / "environments").glob("*.md"))
FILES = sorted((*ENVS.glob("*/*_env.py"), ENVS / "carla" / "interface.py"))
TABLE = re.compile(r"^(\|.*\|)\n\|[-|]+\|\n((?:\|.*\|\n)+)", re.M)
NAME = re.compile(r"`(\w+)`")


def cells_of(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


# the header and the rows of each table
TABLES = [
    (cells_of(header), [cells_of(row) for row in rows.splitlines()])
    for page in (*PAGES, *FILES)
    for header, rows in TABLE.findall(page.read_text(encoding="utf-8"))
]


def tables_of_spaces():
    """Yield (observation or action, experiment, rows) for each table of spaces."""
    for (title, *_), rows in TABLES:
        if title.startswith(("observation of", "action of")):
            what = title.split()[0]
            for name in NAME.findall(title):
                yield pytest.param(what, name, rows, id=f"{what} of {name}")


def tables_of_facts():
    """Yield (experiment, its column as a dictionary) for each table of facts."""
    for (title, *experiments), rows in TABLES:
        for column, names in enumerate(experiments if title == "" else (), start=1):
            facts = {row[0]: row[1] if row[column] == "the same" else row[column] for row in rows}
            for name in NAME.findall(names):
                yield pytest.param(name, facts, id=name)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that makes the environment of a named experiment; skip if its extra is
    missing.
    """
    my_game, envs = write_my_game(tmp_path_factory.mktemp("my_game")), {}

    def make(name):
        if name not in envs:
            try:
                envs[name] = load_experiment(shipped().get(name, my_game), parts=("env",)).env()
            except MissingExtraError as error:
                pytest.skip(str(error))
        return envs[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        yield make
    for env in envs.values():
        env.close()


def described(space):
    """Return a space's shape, dtype and range in the tables' notation."""
    shape = str(list(space.shape))
    if isinstance(space, spaces.Discrete):
        return [shape, str(space.dtype), f"{space.start} to {space.start + space.n - 1}"]
    return [shape, str(space.dtype), f"{written(space.low)} to {written(space.high)}"]


def written(bound):
    """Return the numbers of a bound, or its only number."""
    numbers = bound.flatten() if np.ptp(bound) else bound.flatten()[:1]
    return ", ".join(f"{number:.4g}" for number in numbers)


@pytest.mark.parametrize(("what", "name", "rows"), list(tables_of_spaces()))
def test_a_table_has_the_items_of_the_space(made, what, name, rows):
    space = getattr(made(name), f"{what}_space")
    items = space if isinstance(space, spaces.Tuple) else [space]
    expected = []
    for meaning, shape, dtype, limits, _unit in rows:
        count = re.match(r"the last (\d+) actions$", meaning)
        expected += [[shape, dtype, limits]] * (int(count[1]) if count else 1)
    assert [*map(described, items)] == expected


@pytest.mark.parametrize(("name", "facts"), list(tables_of_facts()))
def test_class_clock_and_length_are_those_of_the_experiment(made, name, facts):
    env = made(name)
    assert type(env) is locate(facts["class"].strip("`"))
    assert facts["time-step"] == (
        "stands still" if env.time_step_s is None else f"{1e3 * env.time_step_s:.0f} ms"
    )
    longest = env.spec.max_episode_steps if env.time_step_s is None else env.unwrapped.ep_max_length
    assert facts["episode"] == f"{longest} steps"


def test_every_experiment_that_ships_is_on_a_page_with_all_tables():
    known = {*shipped(), "my_game"}
    tables = {table.values[:2] for table in tables_of_spaces()}
    assert tables == {(what, name) for what in ("observation", "action") for name in known}
    assert {table.values[0] for table in tables_of_facts()} == known


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_the_first_screen_of_a_file_has_time_step_reward_end_and_both_spaces(file):
    documented = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    rows = "class |", "time-step |", "episode |", "reward |", "ends |"
    for start in ("| `", "observation of `", "action of `", *rows):
        assert f"\n| {start}" in documented
    assert len(documented.splitlines()) < 40
