import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tmrl_like.memory_dataloading import MemoryDataloading
from tmrl_like.networking import RolloutWorker, Server, Trainer
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory
from tmrl_like.training_offline import TrainingOffline
from tmrl_like.util import partial


class House:
    """Starts parts on one transport, and closes all of them at the end."""

    def __init__(self, transport: str, stack: ExitStack) -> None:
        self.transport = transport
        self._stack = stack
        self.port = 0
        self.threads: list[threading.Thread] = []

    def server(self, **options) -> Server:
        server = self._stack.enter_context(
            Server(options.pop("port", self.port), host="127.0.0.1", transport=self.transport, **options)
        )
        self.port = server.address[1]
        return server

    def worker(self, env_cls=CountingEnv, actor_cls=LinearActor, **options) -> RolloutWorker:
        return self._stack.enter_context(
            RolloutWorker(
                env_cls, actor_cls, server_ip="127.0.0.1", server_port=self.port, transport=self.transport, **options
            )
        )

    def trainer(self, memory_cls: type[MemoryDataloading] = ListMemory, training=None, **options) -> Trainer:
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
            "max_training_steps_per_env_step": 1.0,
        } | (training or {})
        options.setdefault("sinks", [])
        return self._stack.enter_context(
            Trainer(
                partial(TrainingOffline, **fields),
                server_ip="127.0.0.1",
                server_port=self.port,
                transport=self.transport,
                **options,
            )
        )

    def start(self, call, *args, **kwargs) -> threading.Thread:
        thread = threading.Thread(target=call, args=args, kwargs=kwargs, daemon=True)
        thread.start()
        self.threads.append(thread)
        return thread


@pytest.fixture(params=["zmq", "inproc"])
def house(request) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(request.param, stack)


@pytest.fixture
def zmq_house() -> Iterator[House]:
    with ExitStack() as stack:
        yield House("zmq", stack)
