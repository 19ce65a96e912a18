"""Server, worker, trainer, test and check, each as a command alone, and all together as separate
processes.
"""

import io
import signal
import sys
import warnings
from unittest.mock import Mock

import numpy as np
import pytest
from cli_commands import TINY, summary_of

from tmrl_like import load_experiment
from tmrl_like.cli.logs import set_up_logging
from tmrl_like.cli.stopping import Stopper
from tmrl_like.config.settings import Settings


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
@pytest.mark.parametrize("nohup", [False, True])
def test_a_part_stops_when_its_terminal_is_closed_unless_nohup_started_it(signals_stay, nohup):
    signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    stopper = Stopper(False, within_s=3600.0, on_stop=lambda: None)
    signal.raise_signal(signal.SIGHUP)
    assert stopper.requested is not nohup


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_a_terminal_that_is_closed_later_hurries_no_part_that_is_ending(signals_stay, monkeypatch):
    monkeypatch.setattr("tmrl_like.cli.stopping.DOUBLE_S", -1.0)
    monkeypatch.setattr("tmrl_like.cli.stopping.end_now", pytest.fail)
    Stopper(False, within_s=3600.0, on_stop=lambda: None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.raise_signal(number)


def test_tensorboard_writes_into_the_runs_folder(typed):
    short = "--trainer.rounds 1 --trainer.steps 1"
    typed("run TINY --in-process --trainer.tensorboard true", short)
    assert [*(Settings(run_name="tiny").paths.folder / "tensorboard").iterdir()]


def test_the_server_is_given_what_the_experiment_says_of_it(monkeypatch):
    monkeypatch.setattr("tmrl_like.server.server.Server", made := Mock())
    load_experiment(TINY, [(("server", "min_samples_per_server_packet"), "10")], ()).make_server()
    assert made.call_args.kwargs["options"].min_samples_per_server_packet == 10


def test_a_worker_is_told_whether_its_actor_is_an_expert(typed, monkeypatch):
    monkeypatch.setattr("tmrl_like.worker.worker.RolloutWorker.run", run := Mock())
    for how in ("", "--expert"):
        typed("worker TINY --server.port=1", how)
        assert run.call_args.kwargs["expert"] == bool(how)


def test_workers_of_one_seed_explore_each_in_its_own_way(typed, monkeypatch):
    monkeypatch.setattr(
        "tmrl_like.worker.worker.RolloutWorker.run", lambda *_, **__: drawn.append(np.random.rand())
    )
    drawn = []
    for name in ("worker-1", "worker-2", "worker-1"):
        typed("worker TINY --server.port=1 --seed 1 --name", name)
    assert drawn[0] == drawn[2] != drawn[1]


def test_a_thread_that_the_environment_leaves_behind_keeps_no_command_from_its_end(start):
    short = "--trainer.rounds 1 --trainer.steps 1"
    command = start("run TINY --in-process --env tiny.ThreadedEnv", short)
    assert command.ends() == 0
    assert "since the thread reader goes on: end it in the environment's" in command.output


def test_parts_start_in_any_order_work_together_and_end_when_asked(start, free_port, own_home):
    port = f"--server.port={free_port}"
    worker = start("worker TINY", port, "--name w1")
    trainer = start("trainer TINY", port)
    worker.wait_for("no server answers")
    server = start("server TINY", port)
    server.wait_for(f"listening on 127.0.0.1 port {free_port}")
    server.wait_for("worker w1 is here")
    assert trainer.ends() == 0, trainer.output
    assert "epoch 0 round 0" in trainer.output
    for part, number in ((server, signal.SIGTERM), (worker, signal.SIGINT)):
        part.process.send_signal(number)
        assert part.ends() == 130, part.output
    folder = own_home / ".tmrl_like/runs/tiny"
    assert (
        f"everything of this run is in {folder}; try: tmrl-like test {TINY} {port}"
        in trainer.output
    )
    assert not (folder / "run.log").exists()  # each has its own standard error


@pytest.mark.parametrize("env", ["ReusingEnv", "SeedlessEnv"])
def test_a_check_takes_each_environment_that_a_worker_takes(env, out_of):
    assert "check passed" in out_of(f"check TINY --seed 3 --delay-steps 0 --env=tiny.{env}")


def test_a_test_says_how_the_environment_failed_and_goes_on(out_of, fail_in_step):
    fail_in_step(2)
    out = out_of("test TINY --untrained --episodes 2")
    assert "fault: the environment raised in step(): OSError: the arm is gone (" in out
    assert "conftest.py:" in out
    assert out.count("episode 1: return") == out.count("episode 2: return") + 1 == 2
    assert summary_of(out)[0] == "2", "what a fault cut short does not count"


def test_a_check_passes_where_the_pipeline_keeps_everything(out_of):
    out = out_of("check TINY --episodes 2")
    assert "delays: driving 400 steps with random actions, up to 30% of half their range" in out
    assert "delay: no effect of the actions was seen" in out
    assert "20 compared, all equal" in out
    assert "check passed" in out


def test_a_check_notes_what_is_odd_and_takes_each_sample_once(out_of, monkeypatch):
    impatient = "--delay-steps 0 --worker.outbox.patience_s 0"
    out = out_of(f"check TINY {impatient} --env.returns outside")
    assert out.count("note: step 2: the observation is outside the bounds") == 1
    assert "wire: 33 samples" in out
    monkeypatch.setattr("tmrl_like.cli.check.LONGEST_EPISODE", 5)
    out = out_of("check TINY --delay-steps 0")
    assert "episode 1 of 3: 5 steps, cut there: does it ever end?" in out


def test_a_user_class_that_fails_keeps_its_traceback(command_line):
    with pytest.raises(ZeroDivisionError, match="the agent of this test fails"):
        command_line("check", TINY, "--episodes", "1", "--agent.fails", "true")


def test_what_the_encoding_of_the_output_lacks_ends_no_command(command_line, monkeypatch):
    """As with `tmrl-like config my_arm > my_arm.txt` on Windows."""
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="cp1252"))
    assert command_line("config", TINY, "--worker.person.reset_prompt", "▁▇") == 0
    sys.stdout.flush()
    assert b"reset_prompt: ??" in printed.getvalue()


def test_warnings_are_log_lines(command_line, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        set_up_logging("worker", "info")
        warnings.warn("something else", stacklevel=1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("UserWarning: something else")
