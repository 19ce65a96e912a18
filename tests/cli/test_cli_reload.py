"""The experiment's file is edited while training goes on."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_commands import HERE, Command

from tmrl_like.base.files import write_atomically
from tmrl_like.cli.reload import Reloading
from tmrl_like.config.loading import as_yaml, open_experiment
from tmrl_like.errors import ConfigError
from tmrl_like.experiment import load_experiment

TEXT = """\
env: tiny.TinyEnv
actor: tiny.TinyActor
agent: {class_path: tiny.TinyAgent, init_args: {gain: 0.5}}
memory: {class_path: tmrl_like.replay.ReplayMemory, init_args: {batch_size: 8}}
trainer: {rounds: 3, keep_policies: 7}
"""
PARTS = ("env", "actor", "agent", "memory")


class Edited:
    """A file, the training that was made of it, and what watches it."""

    def __init__(self, path: Path, overrides: Any = (), text: str = TEXT) -> None:
        self.path, self.times = path, 0
        path.write_text(text)
        self.training = load_experiment(path, overrides).training()
        self.kept = path.with_name("kept.yaml")
        self.kept.write_text(as_yaml(load_experiment(path, overrides, PARTS).as_data()))
        self.reloading = Reloading(open_experiment(path, overrides), overrides, self.training.tuning, self.kept)

    def edit(self, *changes: tuple[str, str], text: str = TEXT) -> None:
        """As editors do: another file is put in its place."""
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.path.with_name("draft").write_text(text)
        self.times += 1
        os.utime(self.path.with_name("draft"), (self.times, self.times))
        self.path.with_name("draft").replace(self.path)

    def see(self) -> None:
        """Two looks, a round, and another look."""
        self.reloading.look()
        self.reloading.look()
        self.training.tuning.begin_round(self.training.ranks)
        self.reloading.look()

    def in_force(self) -> tuple[Any, ...]:
        gain = self.training.agent.gain  # type: ignore[attr-defined]
        return gain, self.training.memory.batch_size, self.training.rounds


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Edited:
    monkeypatch.syspath_prepend(str(HERE))
    caplog.set_level("INFO", "tmrl_like")
    return Edited(tmp_path / "x.yaml")


def test_what_may_change_changes_with_the_next_round_and_the_run_says_so(edited: Edited, caplog: Any) -> None:
    memory = edited.training.memory
    edited.edit(("gain: 0.5", "gain: 0.25"), ("batch_size: 8", "batch_size: 4"), ("rounds: 3", "rounds: 2"))
    edited.reloading.look()
    edited.reloading.look()
    assert edited.in_force() == (0.5, 8, 3)
    edited.see()
    assert edited.in_force() == (0.25, 4, 2)
    assert edited.training.memory is memory
    for line in ("agent.gain changes: 0.5 -> 0.25", "memory.batch_size changes: 8 -> 4", "trainer.rounds changes: 3"):
        assert caplog.text.count(line) == 1
    kept = yaml.safe_load(edited.kept.read_text())
    assert (kept["agent"]["init_args"]["gain"], kept["trainer"]["rounds"]) == (0.25, 2)
    assert edited.training.tuning.given["agent.gain"] == 0.25
    edited.edit(("gain: 0.5", "gain: 1"), ("{rounds: 3, keep_policies: 7}", "{}"))
    edited.see()
    assert edited.in_force() == (1.0, 8, 50)  # left out: the default
    load_experiment(edited.kept)


@pytest.mark.fault("people", "the experiment is saved with a mistake during the run", "one line; nothing changes")
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("gain: 0.5", "gain: much"), r"x\.yaml:3: agent\.init_args\.gain: expected a number, got 'much'"),
        (("gain: 0.5", "gain: 0.5,"), None),  # which YAML takes
        (("rounds: 3", "rounds: 0"), r"x\.yaml:5: trainer\.rounds is 0; expected 1 or more"),
        (("rounds: 3", "rouns: 3"), r"x\.yaml:5: trainer\.rouns: there is no such key; did you mean rounds\?"),
        (("batch_size: 8", "batch_size: 0"), "batch_size is 0; expected a whole number"),
        (("memory:", "# memory:"), "the key memory is missing"),
        (("rounds: 3", "rounds: {3"), "is not valid YAML"),
    ],
)
def test_a_wrong_file_changes_nothing_and_a_right_one_counts_again(edited: Edited, change: Any, line: Any) -> None:
    edited.edit(change)
    if line is None:
        edited.see()
    else:
        with pytest.raises(ConfigError, match=line):
            edited.see()
    assert edited.in_force() == (0.5, 8, 3)
    edited.see()  # once is enough
    edited.edit(("gain: 0.5", "gain: 0.125"))
    edited.see()
    assert edited.in_force() == (0.125, 8, 3)


def test_a_file_that_is_being_written_is_not_read(edited: Edited) -> None:
    edited.edit(text=TEXT[: TEXT.index("trainer:")].replace("0.5", "0.25"))  # its beginning: a whole experiment
    edited.reloading.look()
    edited.edit(("gain: 0.5", "gain: 0.25"), ("rounds: 3", "rounds: 2"))
    edited.see()
    assert edited.in_force() == (0.25, 8, 2)
    edited.path.unlink()  # as some editors do, for a moment
    edited.reloading.look()
    edited.edit(("gain: 0.5", "gain: 0.75"))
    edited.see()
    assert edited.in_force() == (0.75, 8, 3)


def test_what_needs_a_restart_is_one_line_once(edited: Edited, caplog: Any) -> None:
    edited.edit(("keep_policies: 7", "keep_policies: 9"), ("gain: 0.5", "gain: 0.25, fails: true"))
    edited.see()
    edited.edit(("keep_policies: 7", "keep_policies: 9"), ("gain: 0.5", "gain: 0.75, fails: true"))
    edited.see()
    assert edited.in_force()[0] == 0.75
    lines = [record.getMessage() for record in caplog.records if "restart" in record.getMessage()]
    assert len(lines) == 2
    assert lines[0].endswith("x.yaml:3: agent.fails has changed, which needs a restart")
    assert lines[1].endswith("x.yaml:5: trainer.keep_policies has changed, which needs a restart")


def test_what_the_command_line_says_stays_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    edited = Edited(tmp_path / "x.yaml", [(("agent", "gain"), "0.1")])
    edited.edit(("gain: 0.5", "gain: 0.25"), ("batch_size: 8", "batch_size: 4"))
    edited.see()
    assert edited.in_force() == (0.1, 4, 3)


def test_the_discount_is_changed_wherever_the_run_says_it(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level("INFO", "tmrl_like")
    inner = "{class_path: tmrl_like.replay.ReplayMemory, init_args: {n_steps: 3}}"
    text = f"""\
env: {{class_path: tmrl_like.envs.GenericGymEnv, init_args: {{id: Pendulum-v1}}}}
actor: {{class_path: tmrl_like.agents.SquashedGaussianActor, init_args: {{hidden_sizes: [4]}}}}
agent: {{class_path: tmrl_like.agents.SACAgent, init_args: {{gamma: 0.9, acceleration: "off"}}}}
memory: {{class_path: tmrl_like.replay.WithDemonstrations, init_args: {{memory: {inner}}}}}
"""
    edited = Edited(tmp_path / "x.yaml", text=text)
    edited.edit(("gamma: 0.9", "gamma: 0.5"), text=text)
    edited.see()
    memory: Any = edited.training.memory
    assert [holder.gamma for holder in (edited.training.agent, memory, memory.own)] == [0.5] * 3  # type: ignore[attr-defined]
    kept = load_experiment(edited.kept)
    assert kept.memory.keywords["memory"].keywords["gamma"] == 0.5
    kept.training()


def test_the_file_of_a_training_is_edited(
    tmp_path: Path, own_home: Path, command_line: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains for ever, until the file says something else."""
    monkeypatch.setattr("tmrl_like.cli.reload._LOOK_S", 0.01)
    shutil.copy(HERE / "tiny.py", tmp_path)
    file, data = tmp_path / "x.yaml", str(tmp_path / "data")
    file.write_text(TEXT.replace("rounds: 3", "steps: 5, epochs: .inf, checkpoint_interval_s: 99"))
    assert command_line("record", str(file), "--random", "--episodes", "2", "--out", data) == 0
    folder = own_home / ".tmrl_like" / "runs" / "default_run"

    def edit() -> None:
        while not (folder / "experiment.yaml").exists():
            time.sleep(0.01)
        write_atomically(file, file.read_text().replace(".inf", "1").replace("gain: 0.5", "gain: 0.25").encode())

    editor = threading.Thread(target=edit, daemon=True)
    editor.start()
    assert command_line("trainer", str(file), "--offline", "--memory.dataset_path", data) == 0
    editor.join()
    assert '"agent.gain":0.25,"trainer.epochs":1' in (folder / "metrics.jsonl").read_text()
    kept = yaml.safe_load((folder / "experiment.yaml").read_text())
    assert (kept["agent"]["init_args"]["gain"], kept["trainer"]["epochs"]) == (0.25, 1)


@pytest.mark.long
def test_a_run_takes_over_what_is_edited_and_a_killed_one_goes_on_with_it(
    start: Callable[..., Command], own_home: Path, tmp_path: Path, free_port: int, until: Any
) -> None:
    shutil.copy(HERE / "tiny.py", tmp_path)
    file = tmp_path / "x.yaml"

    def put(gain: float) -> None:
        agent = f"agent: {{class_path: tiny.TinyAgent, init_args: {{gain: {gain}}}}}"
        text = (HERE / "tiny.yaml").read_text().replace("agent: tiny.TinyAgent", agent)
        write_atomically(file, text.replace("epochs: 1", "epochs: .inf").encode())

    put(0.02)
    run = start("run", str(file), "--run_name", "edited")
    run.wait_for("checkpoint written")
    put(0.5)
    run.wait_for("agent.gain changes: 0.02 -> 0.5")
    folder = own_home / ".tmrl_like" / "runs" / "edited"
    until(lambda: '"agent.gain":0.5' in (folder / "metrics.jsonl").read_text())
    until(lambda: "gain: 0.5" in (folder / "experiment.yaml").read_text())
    written = run.output.count("checkpoint written")
    until(lambda: run.output.count("checkpoint written") > written + 1)
    for process in [run.process, *run.family()]:
        process.kill()
    run.process.wait()
    put(0.25)
    trainer = start("trainer", str(file), "--run_name", "edited", "--server.port", str(free_port))
    line = trainer.wait_for("resumed from")
    assert "agent.gain changes with this resumption: 0.5 -> 0.25" in trainer.output
    assert int(line.split(" samples")[0].rpartition(" ")[2]) > 0
