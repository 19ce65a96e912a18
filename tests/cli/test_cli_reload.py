"""Editing the experiment's file during training."""

import contextlib
import os
import shutil
import threading

import pytest
from cli_commands import HERE
from kit.waiting import until

from tmrl_like.base.files import write_atomically
from tmrl_like.cli.reload import Reloading
from tmrl_like.config.loading import open_experiment
from tmrl_like.errors import ConfigError
from tmrl_like.experiment import load_experiment

TEXT = """\
env: tiny.TinyEnv
actor: tiny.TinyActor
agent: {class_path: tiny.TinyAgent, init_args: {gain: 0.5}}
memory: {class_path: tmrl_like.replay.ReplayMemory, init_args: {batch_size: 8}}
trainer: {rounds: 3, keep_policies: 7}
"""


class Edited:
    """A file, the training made from it, and the object that watches the file."""

    def __init__(self, path, overrides):
        self.path, self.times = path, 0
        path.write_text(TEXT)
        self.training = load_experiment(path, overrides).training()
        self.reloading = Reloading(
            open_experiment(path, overrides), overrides, self.training.tuning
        )

    def edit(self, *changes, text=TEXT):
        """Replace the file by another one, as editors do."""
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.path.with_name("draft").write_text(text)
        self.times += 1
        os.utime(self.path.with_name("draft"), (self.times, self.times))
        self.path.with_name("draft").replace(self.path)

    def see(self):
        """Look at the file twice, begin a round, and look once more."""
        self.reloading.look()
        self.reloading.look()
        self.training.tuning.begin_round(self.training.ranks)
        self.reloading.look()

    def in_force(self):
        return self.training.agent.gain, self.training.memory.batch_size, self.training.rounds


@pytest.fixture
def edited(tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(str(HERE))
    caplog.set_level("INFO", "tmrl_like")
    return lambda overrides=(): Edited(tmp_path / "x.yaml", overrides)


def test_what_may_change_changes_with_the_next_round_and_a_line_says_so(edited, caplog):
    file = edited()
    memory = file.training.memory
    file.edit(
        ("gain: 0.5", "gain: 0.25"), ("batch_size: 8", "batch_size: 4"), ("rounds: 3", "rounds: 2")
    )
    file.reloading.look()
    file.reloading.look()
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
    assert file.training.tuning.given["agent.gain"] == 0.25
    file.edit(("gain: 0.5", "gain: 1"), ("{rounds: 3, keep_policies: 7}", "{}"))
    file.see()
    assert file.in_force() == (1.0, 8, 50)  # rounds is left out, so the default holds


@pytest.mark.fault(
    "people", "the experiment is saved with a mistake during the run", "one line; nothing changes"
)
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            ("batch_size: 8", "batch_size: much"),
            r"x\.yaml:4: memory\.init_args\.batch_size: expected a whole number, got 'much'",
        ),
        (("rounds: 3", "rounds: 0"), r"x\.yaml:5: trainer\.rounds is 0; expected 1 or more"),
        (("batch_size: 8", "batch_size: 0"), "batch_size is 0; expected a whole number"),
        (("rounds: 3", "rounds: {3"), "is not valid YAML"),
    ],
)
def test_a_mistake_is_said_once_and_what_is_right_beside_it_counts_when_it_is_gone(
    edited, change, line
):
    file, right = edited(), ("gain: 0.5", "gain: 0.25")
    file.edit(change, right)
    for says in (pytest.raises(ConfigError, match=line), contextlib.nullcontext()):
        with says:
            file.see()
        assert file.in_force() == (0.5, 8, 3)
    file.edit(right)
    file.see()
    assert file.in_force() == (0.25, 8, 3)


def test_a_file_that_is_being_written_is_not_read(edited):
    file = edited()
    # the beginning of the file is a valid experiment
    file.edit(text=TEXT[: TEXT.index("trainer:")].replace("0.5", "0.25"))
    file.reloading.look()
    file.edit(("gain: 0.5", "gain: 0.25"), ("rounds: 3", "rounds: 2"))
    file.see()
    assert file.in_force() == (0.25, 8, 2)
    file.path.unlink()  # some editors do so for a moment
    file.reloading.look()
    file.edit(("gain: 0.5", "gain: 0.75"))
    file.see()
    assert file.in_force() == (0.75, 8, 3)


def test_what_needs_a_restart_is_one_line_once(edited, caplog):
    file = edited()
    for gain in ("0.25", "0.75"):
        file.edit(
            ("keep_policies: 7", "keep_policies: 9"), ("gain: 0.5", f"gain: {gain}, fails: true")
        )
        file.see()
    assert file.in_force()[0] == 0.75
    lines = [record.getMessage() for record in caplog.records if "restart" in record.getMessage()]
    assert len(lines) == 2
    assert lines[0].endswith("x.yaml:3: agent.fails has changed, which needs a restart")
    assert lines[1].endswith("x.yaml:5: trainer.keep_policies has changed, which needs a restart")


def test_what_the_command_line_says_stays_over_the_file(edited):
    file = edited(overrides=[(("agent", "gain"), "0.1")])
    file.edit(("gain: 0.5", "gain: 0.25"), ("batch_size: 8", "batch_size: 4"))
    file.see()
    assert file.in_force() == (0.1, 4, 3)


def test_the_file_of_a_training_is_edited(tmp_path, own_home, typed, monkeypatch):
    """The training is endless until the edited file limits it."""
    monkeypatch.setattr("tmrl_like.cli.reload._LOOK_S", 0.01)
    shutil.copy(HERE / "tiny.py", tmp_path)
    file, data = tmp_path / "x.yaml", tmp_path / "data"
    file.write_text(TEXT.replace("rounds: 3", "steps: 5, epochs: .inf, checkpoint_interval_s: 99"))
    typed("record", file, "--random --episodes 2 --out", data)
    folder = own_home / ".tmrl_like" / "runs" / "default_run"

    def edit():
        until((folder / "experiment.yaml").exists)
        write_atomically(
            file, file.read_text().replace(".inf", "1").replace("gain: 0.5", "gain: 0.25").encode()
        )

    editor = threading.Thread(target=edit, daemon=True)
    editor.start()
    typed("trainer", file, "--offline --memory.dataset_path", data)
    editor.join()
    assert '"agent.gain":0.25,"trainer.epochs":1' in (folder / "metrics.jsonl").read_text()
