"""Policies of Stable-Baselines3 as experts: as the library saves them, and read without it."""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_like import RolloutWorker, partial
from tmrl_like.errors import PolicyError
from tmrl_like.policies.stable_baselines import StableBaselinesActor

WIDE = spaces.Box(np.float32([-3.0, 0.0]), np.float32([1.0, 9.0]))  # bounds that are not symmetric
SMALL = {"net_arch": [8, 8]}


class Still(gymnasium.Env[Any, Any]):
    """Spaces, and nothing else."""

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


BOX = spaces.Box(-1.0, 1.0, (3,))
BOTH = spaces.Dict({"a": BOX, "b": spaces.Box(-1.0, 1.0, (2, 2))})
CASES = [
    ("SAC", "MlpPolicy", BOX, WIDE, SMALL),
    ("TD3", "MlpPolicy", BOX, WIDE, SMALL | {"activation_fn": torch.nn.ELU}),
    ("DDPG", "MlpPolicy", BOX, WIDE, SMALL),
    ("PPO", "MlpPolicy", BOX, WIDE, SMALL),
    ("A2C", "MlpPolicy", spaces.Discrete(30), spaces.Discrete(9), SMALL | {"activation_fn": torch.nn.ReLU}),
    ("DQN", "MlpPolicy", BOX, spaces.Discrete(5), SMALL),
    ("SAC", "MultiInputPolicy", BOTH, WIDE, SMALL),
]


def saved(path: Path, algorithm: str, policy: str, observed: Any, actions: Any, kwargs: dict[str, Any]) -> Any:
    """As the library saves it."""
    sb3 = pytest.importorskip("stable_baselines3")
    small = {"n_steps": 8} if algorithm in ("PPO", "A2C") else {"buffer_size": 10}
    small |= {"batch_size": 4} if algorithm == "PPO" else {}
    env, make = Still(observed, actions), getattr(sb3, algorithm)
    model = make(policy, env, policy_kwargs=dict(kwargs), seed=1, device="cpu", **small)
    torch.manual_seed(0)
    for parameter in model.policy.parameters():
        parameter.data.normal_().mul_(parameter.ndim > 1)  # untrained it would do much the same whatever it sees
    model.save(path)
    return model


def written(path: Path, policy: bytes | None = None, **said: Any) -> tuple[Any, Any]:
    """A SAC policy of a hidden layer, in a file as the library would save it; its weights."""
    hidden, last = np.random.default_rng(0).normal(size=(8, 3)), np.random.default_rng(1).normal(size=(2, 8))
    layers = {"actor.latent_pi.0": hidden, "actor.mu": last, "actor.log_std": last, "critic.qf0.0": hidden}
    state = {f"{name}.weight": torch.from_numpy(weight).float() for name, weight in layers.items()}
    state |= {f"{name}.bias": torch.zeros(len(weight)) for name, weight in layers.items()}
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", json.dumps({"policy_kwargs": {}} | said))
        file.writestr("policy.pth", saved_by_torch(state) if policy is None else policy)
        file.writestr("pytorch_variables.pth", b"never read")
    return hidden, last


def zipped(packing: int = zipfile.ZIP_STORED, **files: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", packing) as file:
        for name, content in files.items():
            file.writestr(f"archive/{name.replace('_', '.')}", content)
    return archive.getvalue()


def saved_by_torch(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_an_expert_does_what_the_policy_does_whether_read_or_loaded(case: tuple[Any, ...], tmp_path: Path) -> None:
    algorithm, policy, observed, actions, kwargs = case
    model = saved(tmp_path / "policy.zip", algorithm, policy, observed, actions, kwargs)
    read = StableBaselinesActor(observed, actions, tmp_path / "policy.zip")
    loaded = StableBaselinesActor(observed, actions, model=model)
    done = set()
    for _ in range(20):
        obs = observed.sample()
        expected, _ = model.predict(obs, deterministic=True)
        for actor in (read, loaded):
            action = actor.act_(obs)
            assert actions.contains(action)
            assert np.allclose(action, expected, atol=1e-5)
        done.add(np.asarray(expected).tobytes())
    assert len(done) > 1


def test_a_policy_is_read_and_a_tuple_is_put_side_by_side(tmp_path: Path) -> None:
    hidden, last = written(tmp_path / "policy.zip")
    parts = spaces.Tuple((spaces.Box(-1.0, 1.0, (1,)), spaces.Box(-1.0, 1.0, (2,))))
    for observed in (BOX, parts):
        actor = StableBaselinesActor(observed, WIDE, tmp_path / "policy.zip")
        obs = observed.sample()
        squashed = np.tanh(last @ np.maximum(hidden @ np.concatenate([np.ravel(part) for part in obs]), 0.0))
        assert np.allclose(actor.act_(obs), WIDE.low + (squashed + 1) / 2 * (WIDE.high - WIDE.low), atol=1e-5)
    with pytest.raises(PolicyError, match="takes 3 numbers, an observation holds 5"):
        actor.act_((*obs, np.zeros(2, np.float32)))


def test_the_file_says_the_activation(tmp_path: Path) -> None:
    kwargs = {":type:": "<class 'dict'>", "activation_fn": "<class 'torch.nn.modules.activation.Tanh'>"}
    hidden, last = written(tmp_path / "policy.zip", policy_kwargs=kwargs)
    action = StableBaselinesActor(BOX, spaces.Box(-1.0, 1.0, (2,)), tmp_path / "policy.zip").act_(
        np.ones(3, np.float32)
    )
    assert np.allclose(action, np.tanh(last @ np.tanh(hidden.sum(axis=1))), atol=1e-5)


def test_a_file_of_a_policy_is_the_actor_of_a_worker(tmp_path: Path) -> None:
    written(tmp_path / "expert.zip")
    actor = partial(StableBaselinesActor, path=tmp_path / "expert.zip")
    with RolloutWorker(partial(Still, BOX, WIDE), actor, standalone=True) as worker:
        obs, _ = worker.reset(collect_samples=False)
        worker.step(obs, test=False, collect_samples=False)


class Trap:
    """Unpickling it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_nothing_in_a_file_is_unpickled(tmp_path: Path) -> None:
    for trap in (
        saved_by_torch({"actor.mu.weight": Trap(tmp_path / "sprung")}),
        pickle.dumps(Trap(tmp_path / "sprung")),
    ):
        written(tmp_path / "policy.zip", policy=trap)
        with pytest.raises(PolicyError, match="its parameters: "):
            StableBaselinesActor(BOX, WIDE, tmp_path / "policy.zip")
    assert not (tmp_path / "sprung").exists()


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "policy.zip"
    for said, line in (
        ({"policy_kwargs": {"activation_fn": "<class 'my.Own'>"}}, "its activation is Own; give a loaded `model`"),
        ({"use_sde": True}, r"\(use_sde\): give a loaded `model`"),
    ):
        written(path, **said)
        with pytest.raises(PolicyError, match=line):
            StableBaselinesActor(BOX, WIDE, path)
    written(path, policy=saved_by_torch({"features_extractor.cnn.0.weight": torch.zeros(1)}))
    with pytest.raises(PolicyError, match=r"no MlpPolicy .*features_extractor"):
        StableBaselinesActor(BOX, WIDE, path)
    written(path)
    with pytest.raises(PolicyError, match="gives 2 numbers; expected what Box"):
        StableBaselinesActor(BOX, spaces.Box(-1.0, 1.0, (3,)), path)
    path.write_bytes(b"garbage")
    for broken in (path, tmp_path / "none.zip"):
        with pytest.raises(PolicyError, match=rf"{broken.name} cannot be read"):
            StableBaselinesActor(BOX, WIDE, broken)
    with pytest.raises(PolicyError, match="give one of them"):
        StableBaselinesActor(BOX, WIDE)


def refused(policy: bytes, path: Path) -> str:
    """What is said of a file with these parameters."""
    written(path, policy=policy)
    with pytest.raises(PolicyError, match="cannot be read") as refusal:
        StableBaselinesActor(BOX, WIDE, path)
    return str(refusal.value)


def test_a_small_file_cannot_become_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, module = tmp_path / "policy.zip", "tmrl_like.policies.stable_baselines"
    broad = torch.zeros(1).expand(1 << 14, 1 << 14)  # a GiB by its shape, a number in the file
    assert "claim to be larger" in refused(saved_by_torch({"actor.mu.weight": broad}), path)
    of_memory = pickle.dumps(bytearray, protocol=2)[:-1] + b"J\x00\x00\x00\x7f\x85R."  # torch would allow it: 2 GiB
    assert "they name __builtin__ bytearray" in refused(zipped(data_pkl=of_memory, version=b"3"), path)
    assert "data.pkl holds more than 1 MiB" in refused(zipped(zipfile.ZIP_DEFLATED, data_pkl=bytes(2 << 20)), path)
    monkeypatch.setattr(f"{module}._PARAMETERS_BYTES", 1 << 20)
    once = torch.zeros(150_000)
    assert "larger than 1 MiB" in refused(saved_by_torch({"a": once, "b": once}), path)
    three = {f"data/{k}": bytes(600_000) for k in range(3)}
    assert "data/1 holds more than 0 MiB" in refused(zipped(zipfile.ZIP_DEFLATED, **three), path)
    assert "policy.pth holds more than 1 MiB" in refused(bytes(2 << 20), path)
    assert "not use" in refused(zipped(zipfile.ZIP_BZIP2, version=b"3"), path)
    monkeypatch.setattr(f"{module}._MOST_FILES", 10)
    assert "more than 10 files" in refused(zipped(**{f"data/{k}": b"" for k in range(11)}), path)


def test_layers_that_do_not_follow_each_other_are_refused(tmp_path: Path) -> None:
    for shapes in (((8, 3), (2, 5)), ((8,), (2, 8)), ((8, 0), (2, 8))):
        layers = dict(zip(("actor.latent_pi.0", "actor.mu"), shapes, strict=True))
        state = {f"{name}.weight": torch.zeros(shape) for name, shape in layers.items()}
        state |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in layers.items()}
        assert "does not fit the layers beside it" in refused(saved_by_torch(state), tmp_path / "policy.zip")


def test_a_damaged_file_is_one_line_or_a_policy(tmp_path: Path) -> None:
    path, random = tmp_path / "policy.zip", np.random.default_rng(0)
    written(path)
    whole = path.read_bytes()
    stored = {"policy.pth": saved_by_torch({"actor.mu.weight": torch.zeros(2, 3), "actor.mu.bias": torch.zeros(2)})}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:  # where a flipped bit meets zlib
        for name, content in (stored | {"data": b"[]"}).items():
            file.writestr(name, content)
    lines = set()
    for content in (whole, path.read_bytes()):
        for _ in range(150):
            damaged = bytearray(content[: random.integers(1, len(content)) if random.random() < 0.1 else None])
            for at in random.integers(0, len(damaged), 3):
                damaged[at] = random.integers(0, 256)
            path.write_bytes(damaged)
            try:
                StableBaselinesActor(BOX, WIDE, path)
            except PolicyError as error:
                lines.add(str(error))
    assert len(lines) > 10
    assert all("cannot be read: " in line and "\n" not in line for line in lines)
    for said in ({"policy_kwargs": [1]}, {"policy_kwargs": {"activation_fn": 3}}):
        written(path, **said)
        StableBaselinesActor(BOX, WIDE, path)
