"""Paths on the command line."""

import sys
from pathlib import Path

import pytest
from tiny import actor_that_presses

SAC = "--actor tmrl_like.agents.SquashedGaussianActor --agent tmrl_like.agents.SACAgent"
RUN = "run TINY --in-process --trainer.rounds 1"
RECORD = "record TINY --random --episodes 4 --out data"
LEAVER = """
import filmed, os
os.makedirs("elsewhere", exist_ok=True)
os.chdir("elsewhere")
class Env(filmed.Filmed):
    time_step_s = None
"""


@pytest.mark.parametrize(
    ("before", "command", "said", "written"),
    [
        (RECORD, "record TINY --random --out new", "new", "new/0000000001.log"),
        (
            RECORD,
            f"clone TINY data --steps 1 --out a.safetensors {SAC}",
            "a.safetensors",
            "a.safetensors",
        ),
        (RECORD, "test TINY --policy policy --video a.mp4", "policy", "a.mp4"),
        (RUN, "test home/runs/tiny --episodes 1", "home/runs/tiny", "home/runs/tiny/run.json"),
        (RUN, f"{RUN} --run_name b", "home/runs/b", "home/runs/b/run.json"),
    ],
)
def test_a_path_is_meant_from_where_it_was_typed_though_the_users_module_changes_the_folder(
    before, command, said, written, typed, out_of, tmp_path, monkeypatch
):
    monkeypatch.setenv("TMRL_LIKE_HOME", "home")
    typed(before)
    actor_that_presses(1.0).save("policy")
    Path("leaver.py").write_text(LEAVER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "leaver", raising=False)
    out = out_of(command, "--env leaver.Env")
    assert str(tmp_path / said) in "".join(out.split())
    assert (tmp_path / written).is_file()
