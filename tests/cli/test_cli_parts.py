import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_commands import TINY, Command
from kit.rings import ring_of
from tiny import TinyActor, TinyEnv

from tmrl_like import load_experiment
from tmrl_like.cli.logs import set_up_logging
from tmrl_like.config.paths import default_keys_folder
from tmrl_like.config.settings import Settings
from tmrl_like.errors import ConfigError
from tmrl_like.server.server import Server
from tmrl_like.trainer.trainer_link import TrainerLink
from tmrl_like.transport import KeyFolder, connect
from tmrl_like.transport.base import PeerLink
from tmrl_like.types import ActionSource, Delivery
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition
from tmrl_like.wire.spaces import describe_spaces

CommandLine = Callable[..., int]
Start = Callable[..., Command]


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_a_server_is_up_in_a_moment_ends_when_asked_and_starts_again(
    way: signal.Signals, start: Start, free_port: int
) -> None:
    for _ in range(2):
        server = start("server", TINY, f"--server.port={free_port}")
        server.wait_for(f"listening on 127.0.0.1 port {free_port}")
        server.process.send_signal(way)
        assert server.ends() == 130
        assert port_is_free(free_port)


def test_tensorboard_is_given_what_the_command_gives_the_experiment(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def instead(folder: Path, hyper_parameters: dict[str, Any]) -> None:
        given.update(hyper_parameters)
        raise ConfigError("enough")

    monkeypatch.setattr("tmrl_like.cli.train.TensorBoardSink", instead)
    assert (
        command_line("trainer", TINY, "--trainer.tensorboard=true", "--trainer.rounds", "7", "--memory.batch_size=16")
        == 2
    )
    assert given["agent"] == "tiny.TinyAgent"
    assert (given["trainer.rounds"], given["memory.batch_size"], given["memory.memory_size"]) == (7, 16, 1000)
    assert "server.port" not in given
    assert {type(value) for value in given.values()} <= {bool, int, float, str}


def connection(port: int) -> PeerLink:
    return connect("zmq", "127.0.0.1", port, KeyFolder(default_keys_folder()))


def say_hello(link: PeerLink, role: str) -> None:
    deadline = time.monotonic() + 60.0
    while not link.send(m.encode(m.Hello(role, role, 1, "0"))):  # there is no connection yet
        assert time.monotonic() < deadline
        link.receive(0.1)
    next_of(link, m.Welcome)


def next_of(link: PeerLink, *kinds: type[m.Message]) -> Any:
    """The next message that a peer sent, of one of these kinds."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        data = link.receive(0.1)
        message = None if data is None else m.decode(data)[0]
        if isinstance(message, kinds) and message != m.Beat():  # the server's own
            return message
    raise AssertionError(f"nothing of {kinds} within 60 s")


def test_the_trainer_receives_nothing_until_as_many_samples_wait_as_the_experiment_says(free_port: int) -> None:
    overrides = {"port": free_port, "min_samples_per_server_packet": 10}
    experiment = load_experiment(TINY, [(("server", name), str(value)) for name, value in overrides.items()], ())
    with (
        experiment.make_server(),
        contextlib.closing(connection(free_port)) as trainer,
        contextlib.closing(connection(free_port)) as worker,
    ):
        say_hello(trainer, "trainer")
        say_hello(worker, "worker")
        for number in (1, 2):
            worker.send(m.encode(m.SamplePacket("worker", 1, number, number + 5, 1, 0, 6, 0, False)))
            worker.send(m.encode(m.Beat("worker", Condition(env_steps=number))))  # does not wait for samples
        received = [next_of(trainer, m.SamplePacket, m.Beat) for _ in range(4)]
    numbers = [("beat", x.condition.env_steps) if isinstance(x, m.Beat) else ("packet", x.first) for x in received]
    assert numbers == [("beat", 1), ("packet", 1), ("packet", 2), ("beat", 2)]


def test_an_expert_marks_its_samples_and_runs_no_test_episodes(command_line: CommandLine, free_port: int) -> None:
    spaces = describe_spaces(TinyEnv.observation_space, TinyEnv.action_space)
    deliveries: list[Delivery] = []

    def take_and_end(link: TrainerLink) -> None:
        while sum(len(delivery.buffer) for delivery in deliveries) < 50:
            deliveries.extend(link.retrieve(0.1))
        link.reject(deliveries[-1].receipt, "these are enough")

    with (
        Server(free_port, host="127.0.0.1"),
        contextlib.closing(TrainerLink(ring_of(connection(free_port), ""), "trainer", spaces)) as link,
    ):
        taking = threading.Thread(target=take_and_end, args=(link,), daemon=True)
        taking.start()
        assert command_line("worker", TINY, f"--server.port={free_port}", "--expert") == 1
        taking.join()
    assert {sample.info.timing.source for d in deliveries for sample in d.buffer} == {ActionSource.EXPERT}
    assert not any(episode.test for d in deliveries for episode in d.episodes)


def test_parts_start_in_any_order_work_together_and_end_when_asked(
    start: Start, free_port: int, own_home: Path
) -> None:
    port = f"--server.port={free_port}"
    worker = start("worker", TINY, port, "--name", "w1")
    trainer = start("trainer", TINY, port)
    alone = start("trainer", TINY, "--server.port=1", "--run_name", "alone")
    worker.wait_for("no server answers")
    server = start("server", TINY, port)
    server.wait_for("worker w1 is here")
    assert trainer.ends() == 0, trainer.output
    assert "epoch 0 round 2" in trainer.output
    alone.wait_for("no server answers")
    for part in (server, worker, alone):
        part.process.send_signal(signal.SIGINT)
        assert part.ends() == 130, part.output
    folder = own_home / ".tmrl_like" / "runs" / "tiny"
    assert f"everything of this run is in {folder}; try: tmrl-like test {TINY} {port}" in trainer.output
    kept = (folder / "run.log").read_text()
    assert {"tmrl_like.worker", "tmrl_like.trainer"} <= set(kept.split())
    assert kept.count(" starts: ") == 2


def test_ctrl_c_ends_a_worker_whose_environment_hangs(start: Start, free_port: int) -> None:
    worker = start("worker", TINY, f"--server.port={free_port}", "--env.hangs", "true")
    worker.wait_for("the environment hangs now")
    worker.process.send_signal(signal.SIGINT)
    assert worker.ends() == 130, worker.output


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_worker_that_is_killed_leaves_no_process_of_its_environment_behind(start: Start, free_port: int) -> None:
    changes = ("--env.stubborn_child", "true", "--env.hangs", "true")
    worker = start("worker", TINY, f"--server.port={free_port}", *changes)
    worker.wait_for("the environment hangs now")
    family = worker.family()
    assert len(family) == 3  # its link and the one that ends them, too
    worker.process.kill()
    assert psutil.wait_procs(family, timeout=60.0)[1] == []


def test_a_part_without_its_parent_ends(tmp_path: Path, free_port: int) -> None:
    """The parent's end closes its end of the child's standard input, however it ended."""
    command = [sys.executable, "-m", "tmrl_like", "server", TINY, f"--server.port={free_port}", "--supervised"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as part:
        assert part.stdin is not None
        assert part.stdout is not None
        assert part.stdout.readline() == f"ready {free_port}\n".encode()
        part.stdin.close()
        assert part.wait(60.0) == 130


def test_a_test_drives_the_stored_policy(command_line: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line("test", TINY, "--untrained", "--episodes", "2") == 0
    assert "0%" in capsys.readouterr().out
    actor = TinyActor(TinyEnv.observation_space, TinyEnv.action_space)
    actor.pedal.data.fill_(1.0)
    actor.save(Settings(run_name="tiny").paths.trainer_model)
    assert command_line("test", TINY, "--episodes", "2") == 0
    out = capsys.readouterr().out
    assert "episode 2: return" in out
    assert "100%" in out


def test_a_test_says_how_often_the_environment_failed(
    command_line: CommandLine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TinyEnv, "failed", False)
    assert command_line("test", TINY, "--untrained", "--episodes", "2", "--env.fails_once", "true") == 0
    out = capsys.readouterr().out
    assert "fault: the environment raised in step(): ConnectionError: no answer (" in out
    assert "tiny.py:" in out
    assert "faults of the environment: 1; rebuilt: 1" in out


def test_a_check_passes_where_the_pipeline_keeps_everything(
    command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line("check", TINY, "--episodes", "2") == 0
    out = capsys.readouterr().out
    assert "delays: driving 400 steps with random actions, up to 30% of half their range away" in out
    assert "delay: no effect of the actions was seen" in out
    assert "20 compared, all equal" in out
    assert "check passed" in out


def test_a_check_notes_an_observation_outside_its_bounds(
    command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line("check", TINY, "--env.init_args.returns", "outside", "--delay-steps", "0") == 0
    assert capsys.readouterr().out.count("note: step 2: the observation is outside the bounds") == 1


def test_a_check_cuts_an_episode_that_does_not_end(
    command_line: CommandLine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmrl_like.cli.check._LONGEST_EPISODE", 5)
    assert command_line("check", TINY, "--delay-steps", "0") == 0
    assert "episode 1 of 3: 5 steps, cut there: does it ever end?" in capsys.readouterr().out


def test_a_check_takes_each_sample_once_however_long_its_episodes_are(
    command_line: CommandLine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmrl_like.delivery.sender._FIRST_PATIENCE_S", 0.0)
    assert command_line("check", TINY, "--episodes", "3", "--delay-steps", "0") == 0
    assert "wire: 33 samples" in capsys.readouterr().out


def test_a_user_class_that_fails_keeps_its_traceback(command_line: CommandLine) -> None:
    with pytest.raises(ZeroDivisionError, match="the agent of this test fails"):
        command_line("check", TINY, "--episodes", "1", "--agent.fails", "true")


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize(("has_rich", "kind"), [(True, "RichHandler"), (False, "StreamHandler")])
def test_log_lines_have_colours_where_rich_is_installed(
    has_rich: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: has_rich or None)
    set_up_logging("worker", "info")
    assert [type(handler).__name__ for handler in logging.getLogger().handlers] == [kind]


@pytest.mark.usefixtures("command_line")
def test_warnings_are_log_lines_and_an_overrun_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        set_up_logging("worker", "info")
        warnings.warn("Time-step timed out. Elapsed since last time-step: 0.07", stacklevel=1)  # rtgym's
        warnings.warn("something else", stacklevel=1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("UserWarning: something else")
