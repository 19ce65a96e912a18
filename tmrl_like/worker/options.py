"""How a worker runs its environment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from msgspec import Meta

from tmrl_like.base.options import AboveZero, Natural, NotNegative, Options, Positive
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.errors import expect
from tmrl_like.transport.dial import Dial

if TYPE_CHECKING:
    from tmrl_like.rollouts.hooks import Hook
    from tmrl_like.types import Driver
    from tmrl_like.worker.action_chain import ActionChain

MAX_PRIORITY = 99


Said: TypeAlias = str | float
"""What a person says: "success", "failure", "reset-done", or a reward."""


def to_said(value: Said) -> Said:
    """What somebody wrote -> what is meant; ConfigError: nothing."""
    if value in ("success", "failure", "reset-done"):
        return value
    try:
        reward = float(value)
    except ValueError:
        reward = math.nan
    expect(
        math.isfinite(reward),
        "what a person says",
        value,
        "success, failure, reset-done, or a number, a reward",
    )
    return reward


@dataclass(frozen=True, kw_only=True)
class PersonOptions(Options):
    """What a person says who watches the first environment.

    Attributes:
        watches: somebody does: hear `tmrl-like signal`, too. So it is with `keys` or a
            `reset_prompt`.
        keys: what each key says when it is pressed, by its name (enter, f5, w), whatever window has
            the focus, or button of a gamepad (button 0): success, failure, reset-done, or a number,
            which is a reward; none: nothing.
        reaction_s: for how long after something has happened a person presses the key; for so long,
            and a moment more, steps are held back before they are appended.
        success_reward: added to the reward of the step in which an episode succeeds.
        failure_reward: added where it fails.
        reset_prompt: what a person is to do before each reset, which waits for reset-done; empty:
            resets wait for nobody.
    """

    watches: bool = False
    keys: Mapping[str, Said] | None = None
    reaction_s: NotNegative = 0.25
    success_reward: float = 1.0
    failure_reward: float = 0.0
    reset_prompt: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for said in (self.keys or {}).values():
            to_said(said)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Options):
    """How a worker runs its environment.

    Attributes:
        envs: environments, each in a thread of its own, with its own episodes; all act with one
            policy.
        device: where the actor computes.
        max_samples_per_episode: a longer episode is cut and counts as truncated.
        model_history: keep every k-th policy received; 0: none.
        hang_timeout_s: a step or reset of the environment that takes longer is a fault, and the
            environment is rebuilt.
        own_thread: let the environment live in a thread of its own; false: in the one that runs it,
            which windows may need on macOS (the main thread), and without a way out of a hang.
        link_process: let the connection live in a process of its own, which encodes, sends,
            receives and checks beside the environment's; false: in threads of this one. The
            transport "inproc" always does the latter.
        wait_for_policy: hold still, before the first reset, until a policy has arrived; weights
            that were read from their file are one. Neither experts nor standalone workers wait.
        max_policy_age_s: for how long after it was received (by the worker's clock) a policy may
            drive; after that, and before there is any, `safe_action` drives. With .inf there is no
            limit, and the untrained actor explores until a policy comes. Neither experts nor
            standalone workers have a limit.
        safe_action: drives instead of a policy that is too old or missing, and of an action that is
            not finite; none: the environment's default action.
        takeover_in_tests: let test episodes be taken over as well.
        realtime_priority: of the real-time class, 1 to 99, for the thread that steps the
            environment; none: the ordinary class. Needs a permission; without it, the log says so,
            and the worker runs all the same.
        cpu_affinity: numbers of the processors for that thread, from 0; none: all.
        spool: keep samples on disk as well, so that they outlive the worker: in this folder, or,
            with true, in the run's. Workers of one machine may share it.
        rollout_observations: keep observations in the rollouts that `on_rollout` gets.
        outbox: when packets leave, and how much of them is kept.
        person: what a person says about the first environment's episodes.
    """

    envs: Positive = 1
    device: str = "cpu"
    max_samples_per_episode: Annotated[float, Meta(ge=1)] = math.inf
    model_history: Natural = 0
    hang_timeout_s: AboveZero = 30.0
    own_thread: bool = True
    link_process: bool = True
    wait_for_policy: bool = False
    max_policy_age_s: AboveZero = math.inf
    safe_action: Any = None
    takeover_in_tests: bool = False
    realtime_priority: Annotated[int, Meta(ge=1, le=MAX_PRIORITY)] | None = None
    cpu_affinity: Sequence[int] | None = None
    spool: bool | str | Path = False
    rollout_observations: bool = False
    outbox: OutboxOptions = field(default_factory=OutboxOptions)
    person: PersonOptions = field(default_factory=PersonOptions)


class WorkerKeywords(Dial, total=False):
    """What a worker takes by name alone, beside its options and how it reaches the server.

    Attributes:
        policy: the policy file that drives, whatever is published, in place of the worker's
            `model_path`; its version goes with each sample. None: there is none.
        seed: decides, with the name if one is given, on the seeds of the environments' first
            resets; None: they get none.
        on_rollout: called with each finished episode, as a `Rollout`, in a thread of its own;
            several are called in turn. At most four episodes of each environment wait for it,
            further ones are dropped and counted. The arrays of actions, `info` and observations
            must not be changed after the step that made them. None: nobody.
        takeover: makes, from `action_space` and `default_action`, who may drive the first
            environment in place of the policy (see `types.Driver`), e.g. `envs.drivers.KeyDriver`;
            None: nobody.
        action_chain: makes what each environment's actions go through, filters and limits; None:
            nothing.
        signals: the file to which `tmrl-like signal` appends what a person says; None: the run's.
    """

    policy: str | Path | None
    seed: int | None
    on_rollout: Hook | Sequence[Hook] | None
    takeover: Callable[..., Driver] | None
    action_chain: Callable[[], ActionChain] | None
    signals: str | Path | None
