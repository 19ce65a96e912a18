import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tmrl_like.cli import main
from tmrl_like.config.document import shipped
from tmrl_like.config.loading import load_settings

ROOT = Path(__file__).parents[2]
KINDS = ("robot", "game", "gym")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_passes_the_check_at_once(
    kind: str, command_line: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"my_{kind}_7"
    assert command_line("init", name, "--kind", kind) == 0
    monkeypatch.chdir(name)
    assert sorted(file.name for file in Path().iterdir()) == [f"{name}.py", f"{name}.yaml", f"test_{name}.py"]
    assert not any("my_task" in file.read_text().lower().replace("mytask", "my_task") for file in Path().iterdir())
    length = "--env.max_steps" if kind == "gym" else "--env.ep_max_length"
    assert command_line("check", name, "--episodes", "1", "--delay-steps", "0", length, "10") == 0
    assert "check passed" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_draws_itself(
    kind: str, command_line: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"my_{kind}_8"
    assert command_line("init", name, "--kind", kind) == 0
    monkeypatch.chdir(name)
    length = "--env.max_steps" if kind == "gym" else "--env.ep_max_length"
    film = ("--episodes", "1", "--video", "film.mp4")
    assert command_line("test", name, "--untrained", *film, length, "10") == 0
    assert Path("film.mp4").stat().st_size > 1000


def test_its_own_test_passes(command_line: Callable[..., int]) -> None:
    assert command_line("init", "my_cart", "--kind", "gym") == 0
    own_test = runpy.run_path("my_cart/test_my_cart.py")
    own_test["test_every_sample_is_rebuilt_exactly_and_can_be_trained_on"]()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_trains_at_once(kind: str, command_line: Callable[..., int], free_port: int) -> None:
    assert command_line("init", "my_own", "--kind", kind) == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = ["tmrl_like", "run", "my_own", "--trainer.max_minutes", "0.3", f"--server.port={free_port}"]
    for module in (run, ["pytest", "-q", "-p", "no:cacheprovider"]):
        command = [sys.executable, "-m", *module]
        done = subprocess.run(command, env=environment, cwd="my_own", capture_output=True, text=True, timeout=140)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("taken", "taken exists already: take another name"),
        ("numpy", "there is a Python module numpy already, which yours would hide"),
        ("my-arm", "NAME is 'my-arm'; expected a name for a Python module"),
        ("class", "NAME is 'class'; expected"),
    ],
)
def test_a_name_that_will_not_do_is_one_line(name: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken").mkdir()
    assert main(["init", name, "--kind", "gym"]) == 2
    err = capsys.readouterr().err
    assert problem in err
    assert err.count("\n") == 1
    assert list(Path().iterdir()) == [Path("taken")]


def test_experiments_that_ship_are_found_by_name_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_settings("pendulum").run_name == "pendulum"
    assert main(["server", "pendulm"]) == 2
    assert "there is no experiment and no run pendulm; did you mean pendulum?" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert " ".join(shipped()) in capsys.readouterr().out


def test_an_experiment_of_the_working_folder_comes_before_the_one_that_ships() -> None:
    Path("drone.yaml").write_text((ROOT / "config" / "pendulum.yaml").read_text())
    assert load_settings("drone").run_name == "pendulum"


@pytest.mark.long
def test_a_plain_install_brings_the_experiments_and_the_templates(tmp_path: Path) -> None:
    def call(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    call(sys.executable, "-m", "venv", "--system-site-packages", "fresh")
    python = tmp_path / "fresh" / ("Scripts" if os.name == "nt" else "bin") / "python"
    call(python, "-m", "pip", "install", "-q", "--no-deps", wheel)
    site = next(path for path in sys.path if path.endswith("site-packages"))
    program = f"import sys, runpy; sys.path.append({site!r}); runpy.run_module('tmrl_like', run_name='__main__')"
    (tmp_path / "dependencies.py").write_text(program)
    assert "run_name: drone" in call(python, "dependencies.py", "config", "drone")
    call(python, "dependencies.py", "init", "my_arm", "--kind", "gym")
    assert "check passed" in call(python, "dependencies.py", "check", "my_arm/my_arm.yaml", "--delay-steps", "0")
