"""Installations of one part alone, which the guide gives as one command each."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cli_commands import TINY
from kit.pythons import python
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LEFT_OUT = {
    "actors": [{"torch", "wandb", "opencv-python", "tlspyo", "rich"}],
    "deploy": [
        {
            *(
                "torch",
                "numpy",
                "gymnasium",
                "rtgym",
                "tlspyo",
                "opencv-python",
                "wandb",
                "filelock",
                "safetensors",
            )
        }
        | {"zstandard", "psutil", "rich"},
        {"wandb", "opencv-python", "tlspyo"},
    ],
}
IMPORTED_AS = {"opencv-python": "cv2"}
SERVE = """
from tmrl_like.cli.arguments import parse

arguments = parse(["server", "config/drone.yaml", "--server.port", "0"])
with arguments.experiment.make_server():
    print("serves")
"""


def commands(page):
    text = (ROOT / f"docs/guide/{page}.md").read_text(encoding="utf-8")
    return re.findall("^pip install .* && pip install --no-deps tmrl_like$", text, re.M)


@pytest.mark.parametrize("page", LEFT_OUT)
def test_the_commands_install_what_the_package_needs_but_for_what_a_part_can_do_without(page):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {r.name: r.specifier for r in map(Requirement, project["dependencies"])}
    assert len(commands(page)) == len(LEFT_OUT[page])
    for command, left_out in zip(commands(page), LEFT_OUT[page], strict=True):
        given = {
            r.name: r.specifier
            for r in map(Requirement, shlex.split(command.partition(" && ")[0])[2:])
        }
        assert given.keys() == needed.keys() - left_out
        for name, specifier in needed.items():
            if any(s.operator == "<" for s in specifier) and name in given:
                assert given[name] == specifier


def test_a_server_serves_without_what_its_command_leaves_out(tmp_path):
    missing = [IMPORTED_AS.get(name, name) for name in LEFT_OUT["deploy"][0]]
    code = f"import sys; sys.modules |= dict.fromkeys({missing})\n{SERVE}"
    assert python("-c", code, TMRL_LIKE_HOME=str(tmp_path))[0] == "serves\n"


def test_a_trainer_trains_without_what_its_command_leaves_out(command_line, monkeypatch):
    for name in LEFT_OUT["deploy"][1]:
        monkeypatch.setitem(sys.modules, IMPORTED_AS.get(name, name), None)
    assert (
        command_line("run", TINY, "--in-process", "--trainer.rounds", "1", "--trainer.steps", "1")
        == 0
    )


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_what_was_installed_so_drives_without_what_was_left_out(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    fresh = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    for part in commands("actors")[0].split("&&"):
        arguments = [str(ROOT) if word == "tmrl_like" else word for word in shlex.split(part)[1:]]
        limits = [] if "--no-deps" in arguments else ["-c", str(ROOT / "constraints.txt")]
        subprocess.run([fresh, "-m", "pip", "-q", *arguments, *limits], check=True)
    missing = [IMPORTED_AS.get(name, name) for name in LEFT_OUT["actors"][0]]
    code = f"import importlib.util as u; assert not any(map(u.find_spec, {missing}))"
    subprocess.run([fresh, "-c", code], cwd=tmp_path, check=True)
    environment = {**os.environ, "TMRL_LIKE_HOME": str(tmp_path / "home")}
    environment.pop("PYTHONPATH", None)
    drive = [
        fresh,
        "-m",
        "tmrl_like",
        "test",
        ROOT / "config/drone.yaml",
        "--untrained",
        "--episodes",
        "1",
    ]
    drive += ["--env.ep_max_length", "20"]
    done = subprocess.run(
        drive, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert "episode 1: return" in done.stdout, done.stderr
