"""The server, workers and trainers of one test."""

import dataclasses
import threading
from types import SimpleNamespace

import torch
from kit.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory
from kit.waiting import until

from tmrl_like.base.functional import partial
from tmrl_like.cli.check import taken
from tmrl_like.networking import RolloutWorker, Server, Trainer
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.types import Batch, Buffer
from tmrl_like.worker.options import WorkerOptions


def with_worker_options(arguments):
    """Return the arguments of a worker, with its options gathered in `WorkerOptions`."""
    names = {field.name for field in dataclasses.fields(WorkerOptions)}
    page = WorkerOptions(**{name: value for name, value in arguments.items() if name in names})
    return {name: value for name, value in arguments.items() if name not in names} | {
        "options": page
    }


class House:
    """Starts server, workers and trainers on one transport, the server first, and closes all at the
    end.
    """

    def __init__(self, transport, stack):
        self.transport = transport
        self._stack = stack
        self.port = 0

    def server(self, **options):
        server = self._stack.enter_context(
            Server(self.port, host="127.0.0.1", transport=self.transport, **options)
        )
        self.port = server.address[1]
        return server

    def worker(self, env_cls=CountingEnv, actor_cls=LinearActor, **options):
        self._need_server()
        # a process takes a moment to start
        options = with_worker_options({"model_path": None, "link_process": False} | options)
        worker = self._stack.enter_context(
            RolloutWorker(
                env_cls,
                actor_cls,
                server_port=self.port,
                transport=self.transport,
                **{"server_ip": "127.0.0.1"} | options,
            )
        )
        if worker.link is not None:
            # the last samples may never be acknowledged: do not wait for that
            self._stack.callback(worker.link.close, 0.0)
        return worker

    def trainer(self, memory_cls=ListMemory, training=None, **options):
        self._need_server()
        fields = {
            "env_cls": CountingEnv,
            "memory_cls": partial(memory_cls, batch_size=4),
            "training_agent_cls": CountingAgent,
            "epochs": 1,
            "rounds": 2,
            "steps": 10,
            "update_model_interval": 5,
            "update_buffer_interval": 2,
            "sleep_between_buffer_retrieval_attempts": 0.05,
            "held_out_share": 0.0,
            "max_training_steps_per_env_step": 1.0,
        } | (training or {})
        unsaved = dict.fromkeys(("model_path", "checkpoint_path", "policies_path"))
        return self._stack.enter_context(
            Trainer(
                partial(TrainingOffline, **fields),
                server_ip="127.0.0.1",
                server_port=self.port,
                transport=self.transport,
                **{"sinks": []} | unsaved | options,
            )
        )

    def _need_server(self):
        if not self.port:
            self.server()

    def start(self, call, *args, **kwargs):
        thread = threading.Thread(target=call, args=args, kwargs=kwargs, daemon=True)
        thread.start()
        return thread


def alone(env_cls=CountingEnv, actor_cls=LinearActor, **options):
    """Return a worker without a connection."""
    return RolloutWorker(
        env_cls, actor_cls, standalone=True, **{"model_path": None} | with_worker_options(options)
    )


def publish(trainer, trained=False):
    """Publish the agent's policy (`trained`: after one training step); return its version."""
    if trained:
        trainer.training.agent.train(Batch(*(torch.zeros(1) for _ in range(6))))
    return trainer.link.broadcast_model(trainer.training.agent.get_actor())


def offer(trainer, worker):
    """Publish the agent's policy, and wait until the worker can take it."""
    publish(trainer)
    until(lambda: worker.lanes[0].intake.has_new)


def linear_actor(cls=LinearActor, bias=0.0, weight=0.0):
    env = CountingEnv()
    made = cls(env.observation_space, env.action_space)
    with torch.no_grad():
        made.layer.bias.fill_(bias)
        made.layer.weight.fill_(weight)
    return made


def take(trainer, enough, within_s=60.0):
    """Confirm and collect deliveries to a trainer until `enough(taken)`; return all samples, the
    samples of each stream, and the episodes.
    """
    taken = SimpleNamespace(samples=[], streams={}, episodes=[])

    def look():
        deliveries = trainer.link.retrieve(0.05)
        for delivery in deliveries:
            samples = list(delivery.buffer)
            taken.samples += samples
            if samples:
                taken.streams.setdefault(delivery.buffer.stream, []).extend(samples)
            taken.episodes += delivery.episodes
        trainer.link.confirm(deliveries)
        return enough(taken)

    until(look, "what is to come", within_s)
    return taken


def buffers_of(traffic):
    """Return the samples of some traffic as buffers; a stream's name is the number of breaks before
    it.
    """
    breaks = [str(packet.breaks) for packet, _ in traffic.packets if packet.samples]
    return [
        Buffer(stream=stream, blocks=[block])
        for stream, block in zip(breaks, traffic.blocks, strict=True)
    ]


def collect(worker, episodes=1):
    """Collect training episodes with a worker alone; return their statistics, and the samples of
    their steps.
    """
    with taken(worker) as take:
        stats = [worker.collect_train_episode() for _ in range(episodes)]
        return stats, steps_in(take())


def steps_in(traffic):
    """Return the samples of some traffic, without those of resets."""
    return [
        sample for buffer in buffers_of(traffic) for sample in buffer if not sample.info.is_reset
    ]
