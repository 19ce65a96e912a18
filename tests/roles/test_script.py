"""A script that ends while its worker or trainer still runs in a daemon thread ends cleanly."""

import pytest
from kit.pythons import python

from tmrl_like.errors import ConfigError

SCRIPT = """
import atexit, logging, sys, threading, time
import torch
import tmrl_like.config.config_constants as cfg
from tmrl_like import RolloutWorker, Server, Trainer, TrainingOffline, partial
from tmrl_like.networking import WorkerOptions
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory

BIG = torch.ones(400, 400)


class Busy(LinearActor):
    # nearly always inside torch, where a killed thread takes the process with it
    def act(self, obs, test=False):
        for _ in range(20):
            BIG @ BIG
        return super().act(obs, test)


class Env(CountingEnv):
    stuck = threading.Event()

    def step(self, action):
        if "hangs" in sys.argv and self.total_steps == 30:
            self.stuck.set()
            threading.Event().wait()
        return super().step(action)

    def close(self):
        print("environment closed", flush=True)


logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="log: %(message)s")
server = Server(0, host="127.0.0.1")
options = WorkerOptions(own_thread="no_own_thread" not in sys.argv)
worker = RolloutWorker(Env, Busy, server_port=server.address[1], options=options)
training = partial(
    TrainingOffline, CountingEnv, partial(ListMemory, batch_size=4), CountingAgent,
    epochs=float("inf") if "trainer" in sys.argv else 1, rounds=1, steps=15, update_model_interval=1,
)
trainer = Trainer(training, server_port=server.address[1], sinks=[], checkpoint_path=cfg.CHECKPOINT_PATH)
threading.Thread(target=worker.run, kwargs={"verbose": False}, daemon=True).start()
if "trainer" in sys.argv:
    threading.Thread(target=trainer.run, daemon=True).start()
    while trainer.training.total_updates < 20:
        time.sleep(0.01)
else:
    trainer.run()
if "hangs" in sys.argv:
    Env.stuck.wait()


def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")


atexit.register(lambda: setattr(threading.Thread, "start", refuse))  # so it is from Python 3.12 on
print("end of the script", flush=True)
"""


def end_of_a_script(*ways, code=0):
    """What it printed and logged from its last line on; of one that fails, all that it printed and logged."""
    printed, errors = python("-c", SCRIPT, *ways, code=code)
    assert "Traceback" not in errors
    lines = [line.removeprefix("log: ") for line in printed.splitlines()]
    return lines if code else lines[lines.index("end of the script") :]


@pytest.mark.parametrize("ways", [["hangs"], ["hangs", "no_own_thread"]])
def test_an_environment_that_hangs_does_not_keep_the_script_from_its_end(ways):
    assert end_of_a_script(*ways) == ["end of the script"]


def test_worker_and_trainer_in_daemon_threads_are_closed_and_the_last_checkpoint_is_written(own_home):
    assert end_of_a_script("trainer") == ["end of the script", "environment closed"]
    assert (own_home / ".tmrl_like/runs/default_run/checkpoints/training/checkpoint-1").is_file()


def test_a_script_whose_run_is_done_says_so_in_one_line_and_ends_with_the_command_line_s_exit_code():
    assert end_of_a_script() == ["end of the script", "environment closed"]
    (line,) = [line for line in end_of_a_script(code=ConfigError.exit_code) if "this run has done" in line]
    assert line.startswith("this run has done its 1 epoch: raise epochs (--trainer.epochs) to go on, choose another")
