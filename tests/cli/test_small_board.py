"""Installing one part alone, for which the guide gives one command each."""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
BY_A_SERVER = (  # tests/test_architecture.py asks that it imports none of them
    *("torch", "numpy", "gymnasium", "rtgym", "safetensors", "zstandard"),
    *("tlspyo", "opencv-python", "wandb"),
)
BY_A_TRAINER = ("wandb", "opencv-python", "tlspyo")
LEFT_OUT = {
    "actors": [(*BY_A_TRAINER, "torch")],
    "deploy": [BY_A_SERVER, BY_A_TRAINER],
}


def commands(page):
    text = (ROOT / f"docs/guide/{page}.md").read_text(encoding="utf-8")
    return re.findall("^pip install .* && pip install --no-deps tmrl_like$", text, re.M)


def by_name(requirements):
    return {r.name: r.specifier for r in map(Requirement, requirements)}


@pytest.mark.parametrize("page", LEFT_OUT)
def test_the_commands_install_what_the_package_needs_but_for_what_a_part_can_do_without(page):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = by_name(project["dependencies"])
    for command, left_out in zip(commands(page), LEFT_OUT[page], strict=True):
        given = by_name(shlex.split(command.partition(" && ")[0])[2:])
        assert given.keys() == needed.keys() - set(left_out)
        for name, specifier in needed.items():
            if any(s.operator == "<" for s in specifier) and name in given:
                assert given[name] == specifier


def test_a_trainer_trains_without_what_its_command_leaves_out(typed, monkeypatch):
    for name in BY_A_TRAINER:
        monkeypatch.setitem(sys.modules, name.replace("opencv-python", "cv2"), None)
    typed("run TINY --in-process --trainer.rounds 1 --trainer.steps 1")
