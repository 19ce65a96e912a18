"""What a worker is made of: environments, and lanes that drive them."""

from __future__ import annotations

import contextlib
import logging
import math
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_like.delivery.folder import new_name
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.envs.actions import held_actions
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.errors import ConfigError, DamagedPolicyError
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.rollouts.hooks import Hook, Rollouts
from tmrl_like.types import Driver, ObsPreprocessor, SampleCompressor
from tmrl_like.wire.condition import RETURNS_KEPT, Condition
from tmrl_like.worker.arbiter import Arbiter
from tmrl_like.worker.control_loop import ControlLoop
from tmrl_like.worker.intake import TorchIntake
from tmrl_like.worker.lane import Lane
from tmrl_like.worker.options import WorkerOptions
from tmrl_like.worker.shared import Shared
from tmrl_like.worker.takeover import Takeover, to_action

log = logging.getLogger("tmrl_like.worker")


def make_lanes(
    closing: contextlib.ExitStack,
    options: WorkerOptions,
    outbox: OutboxOptions,
    env_cls: Callable[[], Any],
    actor_module_cls: Callable[..., Any],
    *,
    name: str | None,
    seed: int | None,
    has_link: bool,
    is_pinned: bool,
    takeover: Callable[..., Driver] | None,
    on_rollout: Hook | Sequence[Hook] | None,
    sample_compressor: SampleCompressor | None,
    obs_preprocessor: ObsPreprocessor | None,
    crc_debug: bool,
) -> tuple[list[Lane], Shared | None]:
    """The lanes, and the files that they share with the link, if the worker `has_link`; `closing` closes all of it.

    The other arguments, and what is raised, are those of `RolloutWorker`; `is_pinned`: one policy drives, whatever is
    published.
    """
    envs = _make_envs(env_cls, options, seed, name or "", closing)
    first, safe = envs[0].env, options.safe_action
    _refuse_longer_buffer(sample_compressor, first)
    probe = PolicyProbe(first.observation_space, first.action_space, obs_preprocessor)

    def make_actor() -> Any:
        spaces = {"observation_space": first.observation_space, "action_space": first.action_space}
        actor = actor_module_cls(**spaces).to_device(options.device)
        return actor.in_numpy() or actor

    actors = [make_actor() for _ in envs]
    files = Shared(options.spool, name, outbox, actors, make_actor, probe) if has_link else None
    if files is not None:
        closing.callback(files.close)
    person = None if takeover is None else Takeover(takeover, envs[0], options.takeover_in_tests)
    if person is not None:
        closing.callback(person.close)
    rollouts = Rollouts(on_rollout, options.rollout_observations, 4 * options.envs) if on_rollout else None
    if rollouts is not None:
        closing.callback(rollouts.close)
    make_arbiter = partial(
        Arbiter,
        max_policy_age_s=options.max_policy_age_s if has_link and not is_pinned else math.inf,
        safe_action=None if safe is None else to_action(safe, first.action_space),
        obs_preprocessor=obs_preprocessor,
    )
    make_loop = partial(
        ControlLoop,
        worker=files.worker if files is not None else name or new_name(),
        returns=deque(maxlen=RETURNS_KEPT),
        rollouts=rollouts,
        sample_compressor=sample_compressor,
        crc_debug=crc_debug,
    )
    lanes: list[Lane] = []
    for number, (env, actor) in enumerate(zip(envs, actors, strict=True)):
        intake = TorchIntake(None, probe, make_actor) if files is None else files.intakes[number]
        counts = Condition(expert=is_pinned)
        arbiter = make_arbiter(env, actor, intake, counts, takeover=None if lanes else person)
        loop = make_loop(env, arbiter, counts, samples=None if files is None else files.samples[number])
        lanes.append(Lane(loop, options.max_samples_per_episode))
        closing.callback(env.close)  # before the files: then nobody appends to them any more
    return lanes, files


def _make_envs(
    env_cls: Callable[[], Any], options: WorkerOptions, seed: int | None, name: str, closing: contextlib.ExitStack
) -> list[SupervisedEnv]:
    envs = []
    for number in range(options.envs):
        seed_of_env = None if seed is None else _seed_of(seed, name, number)
        envs.append(SupervisedEnv(env_cls, options.hang_timeout_s, options.own_thread, seed_of_env))
        closing.callback(envs[-1].close)
    return envs


def _seed_of(seed: int, name: str, number: int) -> int:
    """Of an environment: 31 bits that follow from the seed, the worker's name and the environment's number."""
    entropy = (seed, zlib.crc32(name.encode()), number)
    return int(np.random.SeedSequence(entropy).generate_state(1)[0]) >> 1


def load_policy_file(lanes: Sequence[Lane], path: Path, is_needed: bool) -> None:
    """Have all lanes act with weights from the disk. A damaged file that is not `is_needed` is put aside.

    Raises:
        PolicyError: they do not fit the actor, or are not fit to act; or the file is damaged.
    """
    try:
        for lane in lanes:
            lane.loop.driver.load_file(path)
        log.info("loaded weights from %s", path)
    except DamagedPolicyError as error:
        if is_needed:
            raise
        aside = path.replace(f"{path}.damaged")
        log.warning("%s; it is %s now; starting without weights, until some arrive", error, aside)


def _refuse_longer_buffer(compressor: SampleCompressor | None, env: Any) -> None:
    """Raise ConfigError for a compressor that drops more actions than the environment's observations hold."""
    dropped, held = getattr(compressor, "act_buf_len", 0), held_actions(env)
    if held is not None and dropped > held:
        raise ConfigError(
            f"the compressor drops {dropped} actions of each observation, which ends in {held}: give the memory the "
            "environment's act_buf_len, or none"
        )
