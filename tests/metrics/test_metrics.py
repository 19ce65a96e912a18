"""Metrics of a round, and sinks that cannot disturb training."""

import contextlib
import json
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from kit.failing import with_a_full_disk, without_a_reader
from kit.pythons import python
from kit.systems import has_dev_full

from tmrl_like.errors import ConfigError
from tmrl_like.metrics.reading import read_records
from tmrl_like.metrics.sinks import ConsoleSink, JsonLinesSink, TensorBoardSink, WandbSink

ROUND = {
    "kind": "round",
    "epoch": 0,
    "round": 1,
    "time_s": 61.0,
    "training_steps_total": 7,
    "training_steps_per_s": 3.0,
    "env_steps_total": 5,
    "env_steps_per_s": 2.0,
    "training_steps_per_env_step": 1.4,
    "return_test_mean": -3.0,
}


def test_json_lines_are_whole_after_each_record_and_have_no_nan(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    with contextlib.closing(JsonLinesSink(path)) as sink:
        sink.write({**ROUND, "loss": float("nan")})
        assert json.loads(path.read_text())["loss"] is None
    with pytest.raises(ConfigError, match=r"^cannot write metrics to "):
        JsonLinesSink(path / "m")


@pytest.mark.parametrize(("cut_off", "lines"), [("", 2), ('{"kind": "rou', 3)])
def test_what_a_kill_cut_off_does_not_cost_the_first_record_of_the_next_start(
    tmp_path, cut_off, lines
):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 0}\n' + cut_off)
    with contextlib.closing(JsonLinesSink(path)) as sink:
        sink.write({"a": 1})
    assert list(read_records(path)) == [{"a": 0}, {"a": 1}]
    assert path.read_text().count("\n") == lines


@has_dev_full
def test_a_full_disk_is_reported_once_and_does_not_raise(caplog):
    with contextlib.closing(JsonLinesSink(Path("/dev/full"))) as sink:
        sink.write(ROUND)
        sink.write(ROUND)
        assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("figures", "shown"),
    [
        ({"env_faults_total": 2.0}, "faults 2 of environments"),
        ({"rejected_workers_total": 1.0}, "rejected 1 worker processes"),
        ({"loss_critic_held_out": 0.5, "loss_critic": 0.25}, "loss 0.25, held out 0.5"),
        ({"learning": "learning"}, " · does it learn? yes · "),
        ({"learning": "not learning because it stands"}, " · does it learn? no: it stands · "),
    ],
)
def test_the_console_shows_a_round_in_a_line(figures, shown, capsys):
    ConsoleSink().write(ROUND | figures)
    assert shown in capsys.readouterr().err


def test_of_short_rounds_one_line_each_five_seconds_stands_for_several(capsys):
    with contextlib.closing(ConsoleSink()) as sink:
        for number, (time_s, tested) in enumerate(
            [(1.0, None), (2.0, -4.0), (5.9, None), (6.0, None), (7.0, None)]
        ):
            sink.write(ROUND | {"round": number, "time_s": time_s, "return_test_mean": tested})
    first, later, last = capsys.readouterr().err.splitlines()
    assert first.startswith("epoch 0 round 0: ")
    assert later.startswith("epoch 0 round 3: 0:06 · test return -4.00 ")
    assert last.startswith("epoch 0 round 4: ")
    assert "test return" not in first + last


def test_the_console_shows_the_warm_up_rates_ages_and_overruns(capsys):
    ages = {"sample_age_p50_s": 0.05, "policy_age_p50_s": 1.5, "overruns_total": 3}
    sink = ConsoleSink()
    sink.write({"kind": "warm_up", "time_s": 1.0, "env_steps_total": 600, "start_training": 1000})
    sink.write(ROUND | ages)
    assert capsys.readouterr().err == (
        "waiting for samples: 600 of 1,000 (start_training)\n"
        "epoch 0 round 1: 1:01 · test return -3.00 · samples 5, 2.0/s · training 7 steps, 3/s, "
        "1.40 per sample · median age sample 50 ms, policy 1.5 s · overruns 3\n"
    )


def test_the_console_says_at_the_end_what_was_reached(capsys):
    sink = ConsoleSink()
    for number in range(36):
        test, time_s = number % 6 == 0, 10.0 * number
        sink.write({"kind": "episode", "time_s": time_s, "test": test, "return": float(number)})
    sink.close()
    ConsoleSink().close()  # of a training without episodes there is nothing to say
    assert capsys.readouterr().err == (
        "trained for 5:50: test return 6.00 at first, 24.00 in the end (means of 3 episodes); 6 "
        "test and 30 training episodes\n"
    )


@has_dev_full
@pytest.mark.parametrize("opened", [without_a_reader, with_a_full_disk])
def test_a_console_that_takes_nothing_does_not_stop_training(opened, monkeypatch):
    stderr = opened()
    monkeypatch.setattr(sys, "stderr", stderr)
    with contextlib.closing(ConsoleSink()) as sink:
        sink.write(ROUND)
        sink.write(ROUND)
        sink.write({"kind": "episode", "time_s": 1.0, "test": True, "return": 1.0})
    with pytest.raises(OSError, match=r"space|pipe"):
        stderr.close()


def test_tensorboard_gets_the_scalars_of_each_round(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with contextlib.closing(TensorBoardSink(tmp_path)) as killed:
        for step in (6, 7, 8):
            killed.write(ROUND | {"training_steps_total": step})
    with contextlib.closing(TensorBoardSink(tmp_path)) as sink:
        sink.write(ROUND | {"loss_critic": 0.5, "gradient_norm": 1.0})
        sink.write(ROUND | {"kind": "episode", "training_steps_total": 8})
    found = EventAccumulator(str(tmp_path)).Reload()
    _, event = events = found.Scalars("episodes/return_test_mean")
    assert ([event.step for event in events], event.value) == ([6, 7], -3.0)
    tags = set(found.Tags()["scalars"])
    assert {"losses/loss_critic", "agent/gradient_norm", "schedule/epoch"} <= tags
    assert not any("kind" in tag for tag in tags)


def test_tensorboard_that_cannot_write_is_reported_once_and_ends_no_training(
    tmp_path, caplog, monkeypatch
):
    full = OSError("No space left on device")
    writer = Mock(**{"add_scalar.side_effect": full, "close.side_effect": full})
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", Mock(return_value=writer))
    with contextlib.closing(TensorBoardSink(tmp_path)) as sink:
        sink.write(ROUND)
        sink.write(ROUND)
    assert writer.add_scalar.call_count == 1
    (line,) = caplog.messages
    assert line.startswith("TensorBoard: No space left on device; training goes on")


NO_KEY = RuntimeError("no API key configured")


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for the module wandb; `wandb.init()` is the run, which takes everything."""
    monkeypatch.setitem(sys.modules, "wandb", Mock())
    return sys.modules["wandb"]


def send(folder, *records):
    """Send records to wandb, and close its sink."""
    with contextlib.closing(WandbSink(folder, id="r")) as sink:
        for record in records:
            sink.write(record)


@pytest.mark.long
def test_the_real_wandb_keeps_an_offline_run(tmp_path):
    script = f"""if True:
        import sys
        from pathlib import Path
        from tmrl_like.metrics.sinks import WandbSink
        sink = WandbSink(Path({str(tmp_path)!r}), project='p', id='r')
        sink.write({ROUND!r})
        sink.close()
        sys.exit(sink.failed or 0)"""
    python("-c", script, WANDB_MODE="offline", HOME=str(tmp_path))
    assert list(tmp_path.glob("wandb/offline-run-*/run-r.wandb"))


def test_wandb_gets_rounds_and_keeps_the_run_offline_without_key_or_network(wandb, tmp_path):
    offline = Mock()
    wandb.init.side_effect = [NO_KEY, offline]
    send(tmp_path, ROUND, {"kind": "episode"})
    assert [call.kwargs.get("mode") for call in wandb.init.call_args_list] == [None, "offline"]
    (logged,) = offline.log.call_args_list
    assert logged.args[0]["return_test_mean"] == -3.0
    offline.finish.assert_called_once()


def test_wandb_that_hangs_neither_stalls_training_nor_its_end(wandb, tmp_path, monkeypatch, until):
    answers, run = threading.Event(), wandb.init.return_value
    wandb.Settings.side_effect = lambda **_: answers.wait()
    monkeypatch.setattr(WandbSink, "CLOSE_WITHIN_S", 0.2)
    monkeypatch.setattr(WandbSink, "MAX_WAITING", 5)
    send(tmp_path, *[ROUND] * 20)  # returns although wandb has not answered
    answers.set()
    until(lambda: run.finish.called)
    assert run.log.call_count == 5


def test_wandb_that_breaks_is_reported_and_forgotten(wandb, tmp_path, caplog):
    wandb.init.return_value.log.side_effect = NO_KEY
    send(tmp_path, ROUND, ROUND)
    assert "training goes on without it" in caplog.text
