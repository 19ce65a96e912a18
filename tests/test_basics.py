"""Small rooms: util, nn, files, actor, pacing, paths, checkpoint."""

import os
import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import tmrl_like
from tmrl_like.agents.sharing import copy_shared, no_grad
from tmrl_like.base.files import write_atomically
from tmrl_like.base.functional import cached_property, partial, prod
from tmrl_like.config import config_constants as cfg
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.policies.actor import ActorModule, fit_action, to_batch_of_one
from tmrl_like.replay import Prioritised, ReplayMemory
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory
from tmrl_like.trainer.pacing import Pacer
from tmrl_like.trainer.schedule import TrainingOffline, train_step
from tmrl_like.trainer.snapshot import load_checkpoint, take_snapshot
from tmrl_like.types import Buffer


def test_all_public_names_come_from_the_package_itself() -> None:
    for name in tmrl_like.__all__:
        assert getattr(tmrl_like, name) is not None


def test_a_partial_takes_missing_keywords_later_and_nests() -> None:
    inner = partial(dict, a=1)
    outer = partial(lambda make, b: {**make(), "b": b}, make=inner)
    assert outer(b=2) == {"a": 1, "b": 2}


def test_a_misspelt_keyword_fails_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="no argument 'maxlength'; it takes"):
        partial(Pacer, maxlength=3)


def test_prod_of_nothing_is_one() -> None:
    assert prod(()) == 1
    assert prod((2, 3)) == 6


def test_a_cached_property_is_computed_once_per_instance_and_not_copied() -> None:
    class Holder:
        calls = 0
        value = cached_property(lambda self: Holder.count())

        @staticmethod
        def count() -> int:
            Holder.calls += 1
            return Holder.calls

    one, two = Holder(), Holder()
    assert one.value == one.value == 1
    assert two.value == 2
    assert deepcopy(one).value == 3
    assert "value" not in vars(one)


def test_a_shared_copy_sees_each_change_of_the_original() -> None:
    model = torch.nn.Linear(2, 2)
    twin = no_grad(copy_shared(model))
    with torch.no_grad():
        model.weight.fill_(7.0)
    assert bool((twin.weight == 7.0).all())
    assert not any(p.requires_grad for p in twin.parameters())
    assert all(p.requires_grad for p in model.parameters())


def test_a_reader_never_meets_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    contents = [bytes([i]) * 200_000 for i in range(2)]
    write_atomically(path, contents[0])
    stop = threading.Event()

    def write() -> None:
        i = 0
        while not stop.is_set():
            write_atomically(path, contents[i % 2])
            i += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(path.read_bytes() in contents for _ in range(200))
    finally:
        stop.set()
        writer.join()


@pytest.mark.skipif(os.name != "posix", reason="modes are a POSIX matter")
def test_private_files_are_private(tmp_path: Path) -> None:
    write_atomically(tmp_path / "secret", b"x", private=True)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_an_observation_becomes_a_batch_of_one_that_does_not_share_memory() -> None:
    array = np.zeros(2, np.float32)
    obs = (array, {"k": np.float32(3)}, [np.uint8(4)])
    batch = to_batch_of_one(obs)
    array[:] = 9
    assert batch[0].tolist() == [[0.0, 0.0]]
    assert batch[1]["k"].tolist() == [3.0]
    assert batch[2][0].dtype == torch.uint8


def test_actions_get_the_shape_of_their_space() -> None:
    space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    for action in (np.zeros((1, 1)), np.zeros(()), np.zeros(1), torch.zeros(1, 1)):
        assert fit_action(action, space).shape == (1,)
    with pytest.raises(PolicyError, match=r"shape \(2,\); the action space wants \(1,\)"):
        fit_action(np.zeros(2), space)


def actor() -> ActorModule:
    env = CountingEnv()
    return LinearActor(env.observation_space, env.action_space)


def test_weights_are_a_safetensors_file_that_the_library_reads() -> None:
    import safetensors.torch

    one = actor()
    state = safetensors.torch.load(one.weights())
    assert {k: v.tolist() for k, v in state.items()} == {k: v.tolist() for k, v in one.state_dict().items()}


def test_what_is_not_a_policy_is_refused_with_the_files_name(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(PolicyError, match=r"p: weights are not a safetensors file"):
        actor().load(tmp_path / "p")


@pytest.mark.parametrize(
    ("ratio", "start", "updates", "samples", "allowed"),
    [
        (1.0, 0, 0, 0, False),
        (1.0, 0, 0, 1, True),
        (1.0, 0, 1, 1, False),
        (0.5, 0, 0, 1, False),
        (0.5, 0, 0, 2, True),
        (4.0, 10, 0, 9, False),
        (4.0, 10, 39, 10, True),
        (4.0, 10, 40, 10, False),
    ],
)
def test_pacing_is_arithmetic(ratio: float, start: int, updates: int, samples: int, allowed: bool) -> None:
    assert Pacer(ratio, start).may_train(updates, samples) is allowed


def test_another_run_name_changes_all_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("WEIGHTS_FOLDER", "CHECKPOINTS_FOLDER", "MODEL_PATH_WORKER", "MODEL_PATH_TRAINER", "CHECKPOINT_PATH")
    before = {name: getattr(cfg, name) for name in names}
    monkeypatch.setattr(cfg, "RUN_NAME", "another", raising=False)
    for name in names:
        assert getattr(cfg, name) != before[name]
        assert "another" in str(getattr(cfg, name))
    assert len({getattr(cfg, name) for name in names}) == len(names)


def training(**options: Any) -> TrainingOffline:
    return TrainingOffline(CountingEnv, partial(ListMemory, batch_size=2), CountingAgent, **options)


def samples(n: int) -> Buffer:
    row = (np.zeros(1, np.float32), np.zeros(2, np.float32), 0.0, False, False, {})
    return Buffer([row] * n, "w/1/1")


def test_a_resumed_agent_keeps_the_arguments_of_its_new_script(tmp_path: Path) -> None:
    class Agent(CountingAgent):
        def __init__(self, observation_space: Any, action_space: Any, device: str = "cpu", gamma: float = 0.9) -> None:
            super().__init__(observation_space, action_space, device)
            self.gamma = gamma

    def make(gamma: float) -> TrainingOffline:
        return TrainingOffline(CountingEnv, partial(ListMemory, batch_size=2), partial(Agent, gamma=gamma))

    one = make(0.9)
    one.agent.steps = 7  # type: ignore[attr-defined]
    take_snapshot(one).write(tmp_path)
    two = make(0.5)
    load_checkpoint(two, tmp_path)
    assert (two.agent.gamma, two.agent.steps) == (0.5, 7)  # type: ignore[attr-defined]


def test_a_kill_while_writing_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = training()
    one.total_updates = 1
    take_snapshot(one).write(tmp_path)
    for survives in range(2):
        calls = []

        def killed(source: Any, target: Any, survives: int = survives, calls: list[Any] = calls) -> None:
            calls.append(target)
            if len(calls) > survives:
                raise KeyboardInterrupt
            Path(source).rename(target)

        one.total_updates = 99
        with monkeypatch.context() as patch:
            patch.setattr("os.replace", killed)
            with pytest.raises(KeyboardInterrupt):
                take_snapshot(one).write(tmp_path)
        two = training()
        load_checkpoint(two, tmp_path)
        assert two.total_updates == 1


def test_a_training_without_its_parts_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="TrainingOffline needs memory_cls"):
        TrainingOffline(CountingEnv)
    with pytest.raises(ConfigError, match="rounds is 0"):
        training(rounds=0)


def test_spaces_may_be_given_instead_of_an_environment() -> None:
    env = CountingEnv()
    pair = (env.observation_space, env.action_space)
    assert TrainingOffline(pair, ListMemory, CountingAgent).action_space is env.action_space


def replay_training(agent_cls: Any = CountingAgent, **memory: Any) -> TrainingOffline:
    training = TrainingOffline(CountingEnv, partial(ReplayMemory, batch_size=4, **memory), agent_cls)
    training.memory.append(samples(20))
    return training


def test_the_memory_gets_the_errors_that_it_draws_by() -> None:
    class Agent(CountingAgent):
        def train(self, batch: Any) -> dict[str, Any]:
            return super().train(batch) | {"td_error": torch.full((4,), 5.0)}

    training = replay_training(Agent, prioritised=Prioritised(alpha=1.0))
    batch = training.memory.sample()
    assert "td_error" not in train_step(training.agent, training.memory, batch)
    assert training.memory._priorities.powers[batch.drawn].tolist() == pytest.approx([5.0] * 4)  # type: ignore[attr-defined]


def test_an_agent_that_tells_no_errors_is_refused_by_a_memory_that_draws_by_them() -> None:
    training = replay_training(prioritised=Prioritised())
    with pytest.raises(ConfigError, match="returns no td_error"):
        train_step(training.agent, training.memory, training.memory.sample())
    plain = replay_training()
    assert train_step(plain.agent, plain.memory, plain.memory.sample())


def test_memory_and_agent_must_discount_alike() -> None:
    class Agent(CountingAgent):
        gamma = 0.9

    with pytest.raises(ConfigError, match=r"gamma is 0\.5 in the memory and 0\.9 in the agent"):
        replay_training(Agent, n_steps=3, gamma=0.5)
    replay_training(Agent, n_steps=3, gamma=0.9)
