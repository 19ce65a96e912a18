"""`tmrl-like init`, and the experiments that ship."""

import re
import runpy
import sys
from pathlib import Path

import pytest
from kit.pythons import python as run_python

from tmrl_like.config.document import shipped
from tmrl_like.experiment import load_experiment

ROOT = Path(__file__).parents[2]
KINDS = ("robot", "game", "gym")


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_passes_the_check_and_draws_itself_at_once(kind, typed, out_of, monkeypatch):
    name = f"my_{kind}_7"
    typed("init", name, "--kind", kind)
    monkeypatch.chdir(name)
    written = {file.name: file.read_text().lower() for file in Path().iterdir()}
    assert written.keys() == {f"{name}.py", f"{name}.yaml", f"test_{name}.py"}
    assert not re.search("my_?task", "".join(written.values()))
    limit = "max_steps" if kind == "gym" else "ep_max_length"
    short = f"--env.{limit} 10 --episodes 1"
    assert "check passed" in out_of("check", name, "--delay-steps 0", short)
    typed("test", name, "--untrained --video film.mp4", short)
    assert Path("film.mp4").stat().st_size > 1000


def test_its_own_test_passes_under_the_name_that_the_templates_have_too(typed):
    typed("init my_task --kind gym")
    own_test = runpy.run_path("my_task/test_my_task.py")
    own_test["test_every_sample_is_rebuilt_exactly_and_can_be_trained_on"]()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_trains_at_once(kind, typed, free_port):
    typed("init my_own --kind", kind)
    run = f"tmrl_like run my_own --trainer.max_minutes 0.3 --server.port {free_port}"
    for module in (run, "pytest -q -p no:cacheprovider"):
        run_python("-m", *module.split(), cwd="my_own")


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        ("taken", "gym", "taken exists already: take another name"),
        ("numpy", "gym", "there is a Python module numpy already, which yours would hide"),
        ("my-arm", "gym", "NAME is 'my-arm'; expected a name for a Python module"),
        ("class", "gym", "NAME is 'class'; expected"),
        ("null", "gym", "at most 100 letters, no word of Python, YAML or Windows, such as my_arm"),
        ("con", "gym", "NAME is 'con'; expected"),
        (101 * "a", "gym", "expected a name for a Python module, at most 100 letters"),
        ("device", "robot", "a robot has another class named Device: take another name"),
        ("real_time", "game", "a game has another class named RealTimeEnv"),
    ],
)
def test_a_name_that_will_not_do_is_one_line(name, kind, problem, refused, monkeypatch):
    elsewhere = [path for path in sys.path if not path.endswith("benchmarks")]
    monkeypatch.setattr(sys, "path", elsewhere)  # a module there is named real_time
    monkeypatch.delitem(sys.modules, "real_time", raising=False)
    Path("taken").mkdir()
    assert problem in refused("init", name, "--kind", kind)
    assert list(Path().iterdir()) == [Path("taken")]


def test_experiments_that_ship_are_found_by_name_and_listed(out_of):
    assert load_experiment("pendulum", parts=()).run_name == "pendulum"
    assert " ".join(shipped()) in out_of("--help")
    Path("drone.yaml").write_text(shipped()["pendulum"].read_text())
    assert (
        load_experiment("drone", parts=()).run_name == "pendulum"
    )  # a file in the working folder comes first


@pytest.mark.long
def test_a_plain_install_brings_the_experiments_and_the_templates(tmp_path):
    site = tmp_path / "site"
    run_python("-m", "pip", "install", "-q", "--no-deps", "--target", site, ROOT)

    def call(*command):
        return run_python("-m", "tmrl_like", *command, cwd=tmp_path, PYTHONPATH=str(site))[0]

    assert "run_name: drone" in call("config", "drone")
    call("init", "my_arm", "--kind", "gym")
    assert "check passed" in call("check", "my_arm/my_arm.yaml", "--delay-steps", "0")
    code = "import tmrl_like; print(tmrl_like.__file__)"
    found, _ = run_python("-c", code, cwd=tmp_path, PYTHONPATH=str(site))
    assert Path(found).is_relative_to(site)
