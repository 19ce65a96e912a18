"""A script that ends while its worker or trainer still runs in a daemon thread ends cleanly."""

from kit.pythons import python

from tmrl_like.errors import ConfigError

SCRIPT = """
import atexit, logging, sys, threading, time
import torch
import tmrl_like.config.config_constants as cfg
from tmrl_like import RolloutWorker, Server, Trainer, TrainingOffline, partial
from kit.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory

BIG = torch.ones(400, 400)


class Busy(LinearActor):
    # nearly always inside torch, where a killed thread takes the process with it
    def act(self, obs, test=False):
        for _ in range(20):
            BIG @ BIG
        return super().act(obs, test)


class Env(CountingEnv):
    stuck = threading.Semaphore(0)

    def step(self, action):
        if "hangs" in sys.argv and self.total_steps == 30:
            self.stuck.release()
            threading.Event().wait()
        return super().step(action)

    def close(self):
        print("environment closed", flush=True)


def drive():
    worker = RolloutWorker(Env, Busy, server_port=server.address[1], model_path=None)
    threading.Thread(target=worker.run, kwargs={"verbose": False}, daemon=True).start()


def train(**schedule):
    memory = partial(ListMemory, batch_size=4)
    made_of = CountingEnv, memory, CountingAgent
    training = partial(TrainingOffline, *made_of, rounds=1, steps=15, **schedule)
    kept = {"sinks": [], "checkpoint_path": cfg.CHECKPOINT_PATH}
    return Trainer(training, server_port=server.address[1], **kept)


logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="log: %(message)s")
server = Server(0, host="127.0.0.1")
drive()
if "hangs" in sys.argv:
    Env.stuck.acquire()
elif "runs" in sys.argv:
    trainer = train(epochs=float("inf"))
    threading.Thread(target=trainer.run, daemon=True).start()
    while trainer.training.total_updates < 20:
        time.sleep(0.01)
else:
    for _ in range(2):
        with train(epochs=1) as trainer:
            trainer.run()


def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")


atexit.register(lambda: setattr(threading.Thread, "start", refuse))  # so it is from Python 3.12 on
print("end of the script", flush=True)
"""


def lines_of_a_script(way, code=0):
    """Run the script; return the lines that it printed and logged."""
    printed, errors = python("-c", SCRIPT, way, code=code)
    assert "Traceback" not in errors
    return [line.removeprefix("log: ") for line in printed.splitlines()]


def end_of(lines):
    return lines[lines.index("end of the script") + 1 :]


def test_an_environment_that_hangs_does_not_keep_the_script_from_its_end():
    assert end_of(lines_of_a_script("hangs")) == []


def test_worker_and_trainer_in_daemon_threads_are_closed_and_the_last_checkpoint_is_written(
    own_home,
):
    assert "environment closed" in end_of(lines_of_a_script("runs"))
    assert (own_home / ".tmrl_like/runs/default_run/checkpoints/training/checkpoint-1").is_file()


def test_a_script_whose_run_is_done_says_so_in_one_line_and_ends_as_the_command_does():
    lines = lines_of_a_script("is done", code=ConfigError.exit_code)
    assert "end of the script" not in lines
    (line,) = [line for line in lines if "this run has done" in line]
    assert line.startswith(
        "this run has done its 1 epoch: raise epochs (--trainer.epochs) to go on, choose another"
    )
