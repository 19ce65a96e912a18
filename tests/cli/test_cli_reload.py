"""Editing the experiment's file during training."""

import contextlib
import threading
from pathlib import Path

import pytest
from kit.waiting import until

from tmrl_like.base.files import write_atomically
from tmrl_like.cli.reload import Reloading
from tmrl_like.config.loading import open_experiment
from tmrl_like.errors import ConfigError
from tmrl_like.experiment import load_experiment

TEXT = """\
env: tiny.TinyEnv
actor: tiny.TinyActor
agent: {class_path: tiny.TinyAgent, init_args: {gain: GAIN}}
memory: {class_path: tmrl_like.replay.ReplayMemory, init_args: {batch_size: SIZE}}
trainer: {TRAINER}
"""
TRAINER = "rounds: 3, keep_policies: 7"


def text(gain="0.5", size="8", trainer=TRAINER):
    """Return the experiment with these values."""
    return TEXT.replace("GAIN", gain).replace("SIZE", size).replace("TRAINER", trainer)


class Edited:
    """A file, the training made from it, and the object that watches the file."""

    def __init__(self, path, overrides):
        self.path = path
        path.write_text(text())
        self.training = load_experiment(path, overrides).training()
        self.reloading = Reloading(
            open_experiment(path, overrides), overrides, self.training.tuning
        )

    def write(self, new):
        """Replace the file by another one, as editors do."""
        write_atomically(self.path, new.encode())

    def see(self):
        """Look at the file twice, begin a round, and look once more."""
        self.look_twice()
        self.training.tuning.begin_round(self.training.ranks)
        self.reloading.look()

    def look_twice(self):
        self.reloading.look()
        self.reloading.look()

    def edit(self, **values):
        """Replace the file by one with these values, and see it."""
        self.write(text(**values))
        self.see()

    def in_force(self):
        return self.training.agent.gain, self.training.memory.batch_size, self.training.rounds


@pytest.fixture
def edited(caplog):
    caplog.set_level("INFO", "tmrl_like")
    return lambda overrides=(): Edited(Path("x.yaml"), overrides)


def test_what_may_change_changes_with_the_next_round_and_a_line_says_so(edited, caplog):
    file = edited()
    memory = file.training.memory
    file.write(text(gain="0.25", size="4", trainer="rounds: 2, keep_policies: 7"))
    file.look_twice()
    assert file.in_force() == (0.5, 8, 3)
    file.see()
    assert file.in_force() == (0.25, 4, 2)
    assert file.training.memory is memory
    for line in (
        "agent.gain changes: 0.5 -> 0.25",
        "memory.batch_size changes: 8 -> 4",
        "trainer.rounds changes: 3",
    ):
        assert caplog.text.count(line) == 1
    file.write(text(gain="0.125"))
    file.look_twice()
    file.training.tuning.begin_round(file.training.ranks)
    assert file.training.tuning.given["agent.gain"] == 0.125, "what a checkpoint would say now"
    file.edit(gain="1", trainer="")
    assert file.in_force() == (1.0, 8, 50)  # rounds is left out, so the default holds


@pytest.mark.fault(
    "people", "the experiment is saved with a mistake during the run", "one line; nothing changes"
)
@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (
            {"size": "much"},
            r"x\.yaml:4: memory\.init_args\.batch_size: expected a whole number, got 'much'",
        ),
        ({"trainer": "rounds: 0"}, r"x\.yaml:5: trainer\.rounds is 0; expected 1 or more"),
        ({"size": "0"}, "batch_size is 0; expected 1 or more"),
        ({"trainer": "rounds: {3"}, "is not valid YAML"),
    ],
)
def test_a_mistake_is_said_once_and_what_is_right_beside_it_counts_when_it_is_gone(
    edited, wrong, line
):
    file = edited()
    file.write(text(gain="0.25", **wrong))
    for says in (pytest.raises(ConfigError, match=line), contextlib.nullcontext()):
        with says:
            file.see()
        assert file.in_force() == (0.5, 8, 3)
    file.edit(gain="0.25")
    assert file.in_force() == (0.25, 8, 3)


def test_a_file_that_is_being_written_is_not_read(edited):
    file = edited()
    # the beginning of the file is a valid experiment
    file.write(text(gain="0.25").partition("trainer:")[0])
    file.reloading.look()
    file.edit(gain="0.25", trainer="rounds: 2, keep_policies: 7")
    assert file.in_force() == (0.25, 8, 2)
    file.path.unlink()  # some editors do so for a moment
    file.reloading.look()
    file.edit(gain="0.75")
    assert file.in_force() == (0.75, 8, 3)


def test_what_needs_a_restart_is_one_line_once(edited, caplog):
    file = edited()
    for gain in ("0.25", "0.75"):
        file.edit(gain=f"{gain}, fails: true", trainer="rounds: 3, keep_policies: 9")
    assert file.in_force()[0] == 0.75
    lines = [record.getMessage() for record in caplog.records if "restart" in record.getMessage()]
    assert len(lines) == 2
    assert lines[0].endswith("x.yaml:3: agent.fails has changed, which needs a restart")
    assert lines[1].endswith("x.yaml:5: trainer.keep_policies has changed, which needs a restart")


def test_what_the_command_line_says_stays_over_the_file(edited):
    file = edited(overrides=[(("agent", "gain"), "0.1")])
    file.edit(gain="0.25", size="4")
    assert file.in_force() == (0.1, 4, 3)


def test_the_file_of_a_training_is_edited(own_home, typed, monkeypatch):
    """The training is endless until the edited file limits it."""
    monkeypatch.setattr("tmrl_like.cli.reload.LOOK_S", 0.01)
    file = Path("x.yaml")
    endless = "steps: 5, checkpoint_interval_s: 99, epochs: "
    file.write_text(text(trainer=f"{endless} .inf"))
    typed("record x.yaml --random --episodes 2 --out data")
    folder = own_home / ".tmrl_like/runs/default_run"

    def edit():
        until((folder / "experiment.yaml").exists)
        write_atomically(file, text(gain="0.25", trainer=f"{endless} 1").encode())

    editor = threading.Thread(target=edit, daemon=True)
    editor.start()
    typed("trainer x.yaml --offline --memory.dataset_path data")
    editor.join()
    assert '"agent.gain":0.25,"trainer.epochs":1' in (folder / "metrics.jsonl").read_text()
