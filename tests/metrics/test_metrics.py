"""Metrics: what a round says, and sinks that cannot hurt training."""

import builtins
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.episodes import episode

from tmrl_like.base import clocks
from tmrl_like.errors import MissingExtraError
from tmrl_like.metrics.rounds import RoundMetrics
from tmrl_like.metrics.sinks import ConsoleSink, JsonLinesSink, TensorBoardSink, WandbSink
from tmrl_like.types import ActionSource, Buffer, StepTiming
from tmrl_like.wire.messages import SamplePacket
from tmrl_like.wire.packet import PacketWriter, decode_body

ROUND = {
    "kind": "round",
    "epoch": 0,
    "round": 1,
    "time_s": 61.0,
    "training_steps_total": 7,
    "training_steps_per_s": 3.0,
    "env_steps_total": 5,
    "training_steps_per_env_step": 1.4,
    "return_test_mean": -3.0,
}


def closed(metrics: RoundMetrics) -> dict[str, Any]:
    counts = {"total_updates": 6, "total_samples": 3, "memory_transitions": 2}
    return metrics.close(**counts, further={"workers": 2})


def test_losses_are_averaged_over_the_round_whether_tensors_or_numbers() -> None:
    metrics = RoundMetrics(0, 0)
    for i in range(3):
        metrics.add_step({"loss": torch.tensor(float(i)), "lr": 0.5})
    record = closed(metrics)
    assert record["loss"] == pytest.approx(1.0)
    assert record["lr"] == 0.5
    assert record["training_steps_per_env_step"] == 2.0
    assert record["workers"] == 2


def test_an_agent_may_report_a_number_first_and_a_tensor_later() -> None:
    metrics = RoundMetrics(0, 0)
    metrics.add_step({"loss": 0.0})
    metrics.add_step({"loss": torch.tensor(4.0)})
    assert closed(metrics)["loss"] == 2.0


def test_ages_and_staleness_are_of_the_samples_and_who_drove_is_a_share() -> None:
    metrics, writer = RoundMetrics(0, 0), PacketWriter()
    now = clocks.unix_s()
    for k in range(11):
        source = ActionSource.SAFE if k in (0, 1, 2) else ActionSource.POLICY
        timing = StepTiming(now - 10, 0.001 * k, 0.0, 0 if k < 2 else 3, source)
        writer.append((0, 0, 0, 0, 0, {}), timing, is_reset=k == 0)
    body = writer.encode()
    block = decode_body(SamplePacket("w", 1, 1, 11, 1, 0, 11, len(body), compressed=False), body)
    metrics.add_samples(Buffer(blocks=[block]), {3: now - 30}.get, newest_version=8)
    record = closed(metrics)
    assert record["sample_age_p50_s"] == pytest.approx(10, abs=1)
    assert record["policy_age_p999_s"] == pytest.approx(20, abs=1)
    assert record["policy_staleness_p50_versions"] == record["policy_staleness_p999_versions"] == 5
    assert record["inference_p50_s"] == pytest.approx(0.0055, rel=1e-2)
    assert record["safe_action_share"] == pytest.approx(0.2)


def test_how_far_actions_are_apart_is_the_mean_over_steps_of_a_stream_across_packets_but_not_resets() -> None:
    metrics = RoundMetrics(0, 0)
    for stream, acts, resets in (
        ("a", [0.0, 1.0, 3.0], [0]),
        ("b", [100.0], []),
        ("a", [3.5, 9.0, 9.5, 9.5], [1]),
        ("c", [None, None], []),
    ):
        writer = PacketWriter()
        for k, act in enumerate(acts):
            value = act if act is None else np.array((act, -act), np.float32)
            obs = np.zeros(1 + (k in resets))  # another structure: another segment
            writer.append((value, obs, 0, 0, 0, {}), StepTiming(0, 0, 0, 0, ActionSource.POLICY), k in resets)
        body = writer.encode()
        block = decode_body(SamplePacket(stream, 1, 1, len(acts), 1, 0, len(acts), len(body), compressed=False), body)
        metrics.add_samples(Buffer(blocks=[block], stream=stream), {}.get)
    assert closed(metrics)["action_change_mean"] == pytest.approx(np.mean([1.0, 2.0, 0.5, 0.5, 0.0]))


def test_every_episode_of_every_worker_counts() -> None:
    metrics = RoundMetrics(0, 0)
    metrics.episodes += [episode("a", return_=-1.0, test=True), episode("b", return_=-3.0, test=True)]
    metrics.episodes += [episode("a", return_=-10.0)]
    record = closed(metrics)
    assert record["return_test_mean"] == -2.0
    assert record["episodes_test"] == 2
    assert record["return_train_mean"] == -10.0
    assert record["terminated_test_share"] == 1.0


def test_a_round_without_episodes_or_steps_has_no_invented_numbers() -> None:
    record = closed(RoundMetrics(0, 0))
    assert "return_test_mean" not in record
    assert record["episodes_test"] == 0


def test_json_lines_are_whole_after_each_record_and_have_no_nan(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "run" / "metrics.jsonl")
    sink.write({**ROUND, "loss": float("nan")})
    line = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert json.loads(line)["loss"] is None
    sink.close()


def test_a_full_disk_is_reported_once_and_does_not_raise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = JsonLinesSink(tmp_path / "m")

    class Full:
        def write(self, text: str) -> None:
            raise OSError("No space left on device")

        def close(self) -> None:
            pass

    sink._file.close()
    sink._file = Full()  # type: ignore[assignment]
    sink.write(ROUND)
    sink.write(ROUND)
    assert len(caplog.records) == 1


def test_the_console_shows_a_round_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleSink().write(ROUND | {"env_faults_total": 2.0, "rejected_workers_total": 1.0})
    shown = capsys.readouterr().err
    assert "environment faults: 2" in shown
    assert "rejected workers: 1" in shown
    assert "test -3.00" in shown
    assert " 1:01 " in shown
    assert "held out" not in shown
    ConsoleSink().write(ROUND | {"loss_critic_held_out": 0.5, "loss_critic": 0.25})
    assert "loss 0.25, held out 0.5" in capsys.readouterr().err


def test_the_console_says_at_the_end_what_was_reached(capsys: pytest.CaptureFixture[str]) -> None:
    sink = ConsoleSink()
    for number in range(30):
        for test in (True, False)[number % 5 > 0 :]:
            sink.write({"kind": "episode", "time_s": 10.0 * number, "test": test, "return": float(number)})
    sink.close()
    assert capsys.readouterr().err == (
        "trained for 4:50: test return 5.00 at first, 20.00 in the end (means of 3 episodes); 6 test and 30 training "
        "episodes\n"
    )
    ConsoleSink().close()
    assert capsys.readouterr().err == ""


def test_tensorboard_gets_the_scalars_of_each_round(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    sink = TensorBoardSink(tmp_path, {"agent.lr_actor": 1e-3, "agent": "SACAgent", "worker.synchronous": True})
    sink.write(ROUND | {"loss_critic": 0.5, "gradient_norm": 1.0})
    sink.write({**ROUND, "kind": "episode", "training_steps_total": 8})
    sink.close()
    found = EventAccumulator(str(tmp_path)).Reload()
    (event,) = found.Scalars("episodes/return_test_mean")
    assert (event.step, event.value) == (7, -3.0)
    assert {"losses/loss_critic", "agent/gradient_norm", "schedule/epoch"} <= set(found.Tags()["scalars"])
    assert not any("kind" in tag for tag in found.Tags()["scalars"])
    parsed = [
        plugin_data_pb2.HParamsPluginData.FromString(data) for data in found.PluginTagToContent("hparams").values()
    ]
    (experiment,) = [part.experiment for part in parsed if part.HasField("experiment")]
    (session,) = [part.session_start_info for part in parsed if part.HasField("session_start_info")]
    assert session.hparams["agent.lr_actor"].number_value == 1e-3
    assert session.hparams["agent"].string_value == "SACAgent"
    assert "episodes/return_test_mean" in {metric.name.tag for metric in experiment.metric_infos}


def test_tensorboard_that_is_not_installed_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"tmrl_like\[tensorboard\]"):
        TensorBoardSink(tmp_path)


class FakeWandb:
    """Stands in for the wandb module; `online` may raise or hang."""

    def __init__(self, online: Any = None) -> None:
        self.online = online
        self.logged: list[dict[str, Any]] = []
        self.modes: list[str] = []
        self.finished = False

    def Settings(self, **_: Any) -> None:
        return None

    def init(self, mode: str = "online", **arguments: Any) -> "FakeWandb":
        self.modes.append(mode)
        if mode == "online" and self.online is not None:
            self.online()
        return self

    def log(self, record: dict[str, Any]) -> None:
        self.logged.append(record)

    def finish(self) -> None:
        self.finished = True


def fail() -> None:
    raise RuntimeError("no API key configured")


def test_wandb_logs_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    sink = WandbSink(tmp_path, run_id="r")
    sink.write(ROUND)
    sink.write({"kind": "episode"})
    sink.close()
    assert len(fake.logged) == 1
    assert fake.logged[0]["return_test_mean"] == -3.0
    assert fake.finished


def test_the_real_wandb_keeps_an_offline_run(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tmrl_like.metrics.sinks import WandbSink\n"
        f"sink = WandbSink(Path({str(tmp_path)!r}), project='p', run_id='r')\n"
        f"sink.write({ROUND!r})\n"
        "sink.close(); sys.exit(sink.failed or 0)"
    )
    environment = {**os.environ, "WANDB_MODE": "offline", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("wandb/offline-run-*/run-r.wandb"))


def test_wandb_without_key_or_network_keeps_the_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb(fail)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    sink = WandbSink(tmp_path)
    sink.write(ROUND)
    sink.close()
    assert fake.modes == ["online", "offline"]
    assert len(fake.logged) == 1


def test_wandb_that_hangs_neither_stalls_training_nor_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(answers.wait))
    monkeypatch.setattr(WandbSink, "CLOSE_WITHIN_S", 0.2)
    sink = WandbSink(tmp_path)
    for _ in range(WandbSink.MAX_WAITING + 100):
        sink.write(ROUND)
    sink.close()  # comes back, though wandb has not answered
    answers.set()
    assert sink._queue.qsize() <= WandbSink.MAX_WAITING + 1


def test_wandb_that_breaks_is_reported_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeWandb()
    fake.log = lambda record: fail()  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    sink = WandbSink(tmp_path)
    sink.write(ROUND)
    sink.close()
    sink.write(ROUND)
    assert "training goes on without it" in caplog.text
