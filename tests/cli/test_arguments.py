"""Paths on the command line."""

import os
import shutil
import sys

import pytest
from tiny import actor_that_presses

from tmrl_like.config.settings import Settings

SAC = "--actor tmrl_like.agents.SquashedGaussianActor --agent tmrl_like.agents.SACAgent"


@pytest.mark.parametrize(
    ("command", "written", "said"),
    [
        ("record TINY --random --episodes 1 --out new", "new/0000000001.log", "new: "),
        (
            f"clone TINY data --steps 1 --out new.safetensors {SAC}",
            "new.safetensors",
            "new.safetensors: ",
        ),
        ("test TINY --policy policy --episodes 1 --video new.mp4", "new.mp4", "in 3 steps"),
        ("run TINY --in-process --trainer.rounds 1", "home/runs/tiny/run.json", ""),
    ],
)
def test_a_path_is_meant_from_where_it_was_typed_though_the_environment_changes_the_folder(
    command, written, said, typed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMRL_LIKE_HOME", "home")
    typed("record TINY --random --episodes 4 --out data")
    actor_that_presses(1.0).save("policy")
    assert said in typed(command, "--env tiny.LeavingEnv").out
    assert os.getcwd() != str(tmp_path)
    assert (tmp_path / written).is_file()


@pytest.mark.parametrize("given", ["TINY --policy policy", "copy"])
def test_a_policy_is_meant_from_where_it_was_typed_though_the_users_module_changes_the_folder(
    given, typed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    typed("run TINY --in-process --trainer.rounds 1")
    shutil.copytree(Settings(run_name="tiny").paths.folder, "copy")
    actor_that_presses(1.0).save("policy")
    code = "import os\nfrom tiny import TinyEnv\nos.makedirs('elsewhere')\nos.chdir('elsewhere')\n"
    (tmp_path / "leaver.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "leaver", raising=False)
    out = typed("test", given, "--episodes 1 --env leaver.TinyEnv").out
    assert str(tmp_path / given.split()[-1]) in "".join(out.split())
    assert os.getcwd() == str(tmp_path / "elsewhere")
