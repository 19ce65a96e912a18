"""The link in its own process: whichever process ends, no appended entry is lost."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
import torch
from kit.episodes import of_episodes
from kit.fakes import CountingEnv
from kit.policies import Moody
from kit.pythons import PYTHONPATH, python

from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.base.children import start_child
from tmrl_like.base.functional import partial
from tmrl_like.errors import ShortageError
from tmrl_like.policies.weight_file import read_weights
from tmrl_like.worker import link_client
from tmrl_like.worker.link_messages import Leave

ENDLESS = {"epochs": 10**6, "rounds": 10**6}


def test_what_a_killed_link_has_not_delivered_the_next_one_delivers_once_and_in_order(
    zmq_house, rows, until, caplog
):
    trainer = zmq_house.trainer(rows, training=ENDLESS)
    worker = zmq_house.worker(
        partial(CountingEnv, episode_steps=10, step_s=0.001), envs=2, link_process=True
    )
    zmq_house.start(trainer.run)
    running = zmq_house.start(worker.run, verbose=False)
    for _ in range(2):
        link, steps, seen = worker.link.process, worker.condition().env_steps, rows.count()
        until(lambda seen=seen: rows.count() > seen + 50)
        link.kill()
        until(lambda link=link: worker.link.process is not link and worker.link.connected.is_set())
        assert worker.condition().env_steps > steps
    assert caplog.text.count(
        "the link process ended with exit code -9: the environment goes on, starting it again"
    )
    worker.stop()
    running.join()
    expected = sorted(of_episodes(lane.loop.counts.env_steps, 10) for lane in worker.lanes)
    worker.close()
    until(lambda: rows.count() >= sum(map(len, expected)))
    assert sorted(rows.arrived.values()) == expected


@pytest.mark.parametrize("when", ["while another link is awaited", "at once"])
def test_a_worker_that_is_closed_after_its_link_was_killed_sends_what_is_left(
    zmq_house, rows, until, when
):
    trainer = zmq_house.trainer(rows, training=ENDLESS)
    worker = zmq_house.worker(partial(CountingEnv, episode_steps=10), link_process=True)
    zmq_house.start(trainer.run)
    assert worker.wait_connected(60)
    link = psutil.Process(worker.link.process.pid)
    if when == "at once":
        link.suspend()
        worker.run(nb_episodes=3, verbose=False)
        link.kill()
    else:
        link.kill()
        until(lambda: not worker.link.connected.is_set())
        worker.run(nb_episodes=3, verbose=False)
    worker.link.close(30.0)
    until(lambda: rows.count() >= 33)
    assert [*rows.arrived.values()] == [of_episodes(30, 10)]


def test_a_link_in_a_thread_that_ends_is_started_again(inproc_house, until, caplog):
    worker = inproc_house.worker()
    worker.link.send(Leave(0.0))
    until(lambda: "the link's thread ended: the environment goes on, starting it" in caplog.text)
    assert worker.wait_connected(60)


WORKER = """
import json, os, sys, time
from tmrl_like import RolloutWorker, partial
from tmrl_like.networking import WorkerOptions
from kit.fakes import CountingEnv, LinearActor

# no `if __name__ == "__main__"`: users' scripts have none
port, keys, spool = json.loads(sys.argv[1])
class Own(CountingEnv):
    def step(self, action):
        if self.total_steps == 230:
            worker.wait_connected(60)
            print(worker.link.process.pid, flush=True)
            sys.stdin.readline()
            worker.link.process.stdin.close()  # the system closes what a process has one by one
            time.sleep(0.3)
            os.kill(os.getpid(), 9)
        return super().step(action)

worker = RolloutWorker(
    partial(Own, episode_steps=10), LinearActor, server_port=port, keys_dir=keys, name="w",
    model_path=None, options=WorkerOptions(spool=spool),
)
worker.run(verbose=False)
"""


@pytest.mark.fault(
    "processes", "the environment's process is killed", "its link sends what is left, and ends"
)
@pytest.mark.parametrize(("spool", "has_trainer"), [(False, True), (True, True), (False, False)])
def test_without_its_robot_a_link_sends_what_is_left_or_says_what_is_lost_and_ends(
    spool, has_trainer, zmq_house, rows, until, tmp_path
):
    server = zmq_house.server(keys_dir=tmp_path / "keys")
    if has_trainer:
        trainer = zmq_house.trainer(rows, training=ENDLESS, keys_dir=tmp_path / "keys")
        zmq_house.start(trainer.run)
    where = json.dumps(
        [server.address[1], str(tmp_path / "keys"), str(tmp_path / "spool") if spool else False]
    )
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, where],
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as robot:
        link = psutil.Process(int(robot.stdout.readline()))
        said = robot.communicate(b"now\n")[1].decode()
    assert robot.returncode == -signal.SIGKILL
    until(lambda: not link.is_running())
    expected = [*of_episodes(230, 10), (24, 0)]
    entries = len(expected) + 23  # with the reports of episodes
    lost = f"{entries} entries of worker w have not reached the trainer: they are lost"
    assert [line for line in said.splitlines() if "worker w" in line] == (
        [] if has_trainer else [lost]
    )
    if has_trainer:
        until(lambda: rows.count() >= len(expected))
        assert [*rows.arrived.values()] == [expected]


@pytest.mark.parametrize("is_own", [True, False])
def test_policies_drive_that_have_been_checked_and_both_ends_say_why_others_do_not(
    is_own, zmq_house, until, tmp_path, caplog
):
    """Policies of a built-in actor are probed by the link, those of a user's actor where they
    act.
    """
    caplog.set_level("INFO")

    def publish(value):
        last_layer.bias.data.fill_(value)
        trainer.link.broadcast_model(actor)

    actor_cls = Moody if is_own else partial(SquashedGaussianActor, hidden_sizes=(8,))
    trainer, kept = zmq_house.trainer(), tmp_path / "policy.safetensors"
    env_cls = partial(CountingEnv, step_s=0.001)
    worker = zmq_house.worker(env_cls, actor_cls, link_process=True, model_path=kept, name="arm")
    actor = actor_cls(worker.env.observation_space, worker.env.action_space)
    last_layer = actor.layer if is_own else actor.head
    zmq_house.start(worker.run, verbose=False)
    publish(0.5)
    until(lambda: worker.policy_version == 1)
    assert worker.actor.weights() == actor.weights()
    until(lambda: kept.exists() and read_weights(kept)[1] == actor.weights())
    good = worker.actor.weights()
    if not is_own:
        actor.hidden[0].bias.data.fill_(3e38)
        actor.head.weight.data[:] = torch.tensor([3e38, -3e38] * 4)  # infinity minus infinity
    publish(1.5)
    until(lambda: "worker arm: policy 2 is refused" in caplog.text)  # said once the fleet knows
    assert worker.policy_version == 1
    assert worker.actor.weights() == read_weights(kept)[1] == good
    actor.load_weights(good)
    publish(0.75)
    until(lambda: worker.policy_version == 3 and read_weights(kept)[1] == actor.weights())
    until(lambda: "worker arm: all is well again" in caplog.text)


def test_a_link_that_cannot_be_started_is_one_error(zmq_house, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false" if os.name == "posix" else "where.exe")
    with pytest.raises(Exception, match="link process ended with exit code 1 before it was ready"):
        zmq_house.worker(link_process=True)


WITHOUT_THREADS = """
import threading

def refuse(thread):
    raise RuntimeError("can't start new thread")

threading.Thread.start = refuse
from tmrl_like.worker.link_process import main
main()
"""


def test_a_link_that_finds_no_thread_is_one_error(zmq_house, monkeypatch, capfd):
    def start(script, **pipes):
        command = [sys.executable, "-c", WITHOUT_THREADS, str(os.getpid())]
        return start_child(command, {"PYTHONPATH": PYTHONPATH}, bufsize=0, **pipes)

    monkeypatch.setattr(link_client, "start_script", start)
    with pytest.raises(ShortageError, match="thread tmrl-parent cannot be started"):
        zmq_house.worker(link_process=True)
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux")
def test_a_link_has_no_real_time_priority_whoever_starts_it(zmq_house, until):
    started = []

    def start():
        with contextlib.suppress(PermissionError):  # then no process has real-time priority
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        started.append(zmq_house.worker(link_process=True))

    zmq_house.start(start).join()
    assert os.sched_getscheduler(started[0].link.process.pid) == os.SCHED_BATCH


REFUSED = """
import os

def refuse(*arguments):
    raise PermissionError(1, "Operation not permitted")

os.sched_setscheduler = refuse  # as for an ordinary user under `chrt --idle 0`
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the other side has ended
from tmrl_like.worker.link_process import main
main()
"""


@pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="Linux")
def test_a_link_that_may_not_change_how_it_is_scheduled_runs_all_the_same():
    no_process = 2**30
    assert python("-c", REFUSED, no_process) == ("", "")
