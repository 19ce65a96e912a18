"""Options of a rollout worker."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from msgspec import Meta

from tmrl_like.base.options import (
    MAX_REWARD,
    AboveZero,
    Natural,
    NotNegative,
    Options,
    Positive,
    Reward,
)
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.errors import expect
from tmrl_like.transport.dial import Dial

if TYPE_CHECKING:
    from tmrl_like.rollouts.hooks import Hook
    from tmrl_like.types import Driver
    from tmrl_like.worker.action_chain import ActionChain

BUTTON = "button "
MAX_PRIORITY = 99

_KEY = re.compile(rf"(?!{BUTTON.strip()}).+|{BUTTON}[0-9]+")

Said: TypeAlias = str | float
"""A person's signal: "success", "failure", "reset-done", or a reward."""


def to_said(value: Said) -> Said:
    """Return the signal that a key's setting or a command stands for. Raises ConfigError for
    anything else.
    """
    if value in ("success", "failure", "reset-done"):
        return value
    try:
        reward = float(value)
    except (TypeError, ValueError):
        reward = math.nan
    expect(
        abs(reward) <= MAX_REWARD,
        "what a person says",
        value,
        f"success, failure, reset-done, or a number from {-MAX_REWARD} to {MAX_REWARD}, a reward",
    )
    return reward


@dataclass(frozen=True, kw_only=True)
class PersonOptions(Options):
    """Options for a person who watches the first environment and signals how it goes.

    Attributes:
        watches: whether a person watches, so that the signals of `tmrl-like signal` are read.
            Implied by `keys` and by `reset_prompt`.
        keys: the signal that each key sends when it is pressed, whichever window has the focus: a
            key by its name (enter, f5, w), or a gamepad's button (button 0). A signal is success,
            failure, reset-done, or a number from -1e6 to 1e6, which is a reward. none: no keys.
        reaction_s: how long after an event a person presses the key. Steps are held back for this
            time, and a moment longer, before they are appended.
        success_reward: added to the reward of the step in which an episode succeeds.
        failure_reward: added to the reward of the step in which an episode fails.
        reset_prompt: what a person is asked to do before each reset, which then waits for
            reset-done; empty: resets do not wait.
    """

    watches: bool = False
    keys: Mapping[str, Said] | None = None
    reaction_s: NotNegative = 0.25
    success_reward: Reward = 1.0
    failure_reward: Reward = 0.0
    reset_prompt: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, said in (self.keys or {}).items():
            to_said(said)
            is_key = isinstance(name, str) and bool(_KEY.fullmatch(name))
            expect(is_key, "a key", name, "its name in quotes, or a gamepad's button: button 0")


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Options):
    """Options of a worker: how it runs its environment.

    Attributes:
        envs: number of environments, each in its own thread and with its own episodes; all act with
            one policy.
        device: device on which the actor computes.
        max_samples_per_episode: a longer episode is cut and counts as truncated.
        model_history: keep every k-th policy received; 0: none.
        hang_timeout_s: a step or reset of the environment that takes longer is a fault, and the
            environment is rebuilt.
        link_process: run the connection in a separate process, which encodes and sends samples and
            receives and checks policies beside the environment's process; false: in threads of this
            process. The transport "inproc" always uses threads.
        wait_for_policy: hold still, before the first reset, until a policy has arrived; weights
            read from their file count as one. Experts and standalone workers do not wait.
        max_policy_age_s: how long after it was received (by the worker's clock) a policy may drive;
            after that, and before there is any policy, `safe_action` drives. With .inf there is no
            limit, and the untrained actor explores until a policy arrives. Experts and standalone
            workers have no limit.
        safe_action: replaces the action of a policy that is too old or missing, and any action that
            is not finite; none: the environment's default action.
        takeover_in_tests: allow takeovers in test episodes as well.
        realtime_priority: real-time priority, 1 to 99, for the thread that steps the environment;
            none: ordinary scheduling. Needs a permission; without it, the worker logs a line and
            runs anyway.
        cpu_affinity: numbers of the processors that this thread may use, from 0; none: all.
        spool: keep samples on disk as well, so that they outlive the worker: in this folder or,
            with true, in the run's. Workers of one machine may share it.
        rollout_observations: include observations in the rollouts passed to `on_rollout`.
        outbox: when packets are sent, and how much of them is kept.
        person: signals of a person about the first environment's episodes.
    """

    envs: Positive = 1
    device: str = "cpu"
    max_samples_per_episode: Annotated[float, Meta(ge=1)] = math.inf
    model_history: Natural = 0
    hang_timeout_s: AboveZero = 30.0
    link_process: bool = True
    wait_for_policy: bool = False
    max_policy_age_s: AboveZero = math.inf
    safe_action: Any = None
    takeover_in_tests: bool = False
    realtime_priority: Annotated[int, Meta(ge=1, le=MAX_PRIORITY)] | None = None
    cpu_affinity: tuple[Natural, ...] | None = None
    spool: bool | str | Path = False
    rollout_observations: bool = False
    outbox: OutboxOptions = field(default_factory=OutboxOptions)
    person: PersonOptions = field(default_factory=PersonOptions)


class WorkerKeywords(Dial, total=False):
    """Keyword arguments of a worker besides its options and how it reaches the server.

    Attributes:
        policy: a policy file that drives regardless of what is published, in place of the worker's
            `model_path`; its version is stored with each sample. None: no such file.
        seed: determines, together with the name if one is given, the seeds of the environments'
            first resets; None: they are not seeded.
        on_rollout: called with each finished episode, as a `Rollout`, in a separate thread; several
            are called in turn. At most four episodes per environment wait for it; further ones are
            dropped and counted. The arrays of actions, `info` and observations must not change
            after the step that made them. None: no calls.
        takeover: makes, from `action_space` and `default_action`, the driver that may drive the
            first environment in place of the policy (see `types.Driver`), e.g.
            `envs.drivers.KeyDriver`; None: no takeovers.
        action_chain: makes the chain of filters and limits that an environment's actions pass
            through; called once for each environment. None: no chain.
        signals: the file to which `tmrl-like signal` appends a person's signals; None: the run's.
    """

    policy: str | Path | None
    seed: int | None
    on_rollout: Hook | Sequence[Hook] | None
    takeover: Callable[..., Driver] | None
    action_chain: Callable[[], ActionChain] | None
    signals: str | Path | None
