"""The options of a training's schedule and of the trainer that runs it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from msgspec import Meta

from tmrl_like.base.options import AboveZero, Natural, NotNegative, Options, Positive
from tmrl_like.base.text import counted
from tmrl_like.errors import ConfigError, FinishedError

Resume = Literal["all", "memory", "none"]


@dataclass(kw_only=True, eq=False)
class Schedule(Options):
    """When a training trains, publishes, takes new samples and ends; `TrainingOffline` has these
    fields.

    Not frozen: an `agent_scheduler` or `updater_fn` may change them while training runs.

    Attributes:
        epochs: number of epochs; a checkpoint is written after each. .inf: train for ever.
        rounds: rounds per epoch; metrics are shown after each.
        steps: training steps per round.
        metrics_interval_s: least time between metrics, in seconds: a round that ends sooner is
            counted together with the next one; 0: no limit.
        max_minutes: end the training after this time, even if epochs are left; the time that it
            ran before a resumption counts.
        start_training: samples to receive before the first training step.
        update_model_interval: training steps between two publications of the policy.
        update_model_interval_s: least time between two publications, in seconds; 0: no limit. At
            the start and after each epoch the policy is published whatever both intervals are.
        update_buffer_interval: training steps between two checks for new samples.
        max_training_steps_per_env_step: training pauses above this ratio, as soon as a worker has
            sent a sample; the samples of a data set count.
        sample_uses: how often each sample is trained on, on average: training also pauses above
            sample_uses / batch size training steps per sample that is not held out. The lower of
            both limits holds. None: only max_training_steps_per_env_step does.
        sleep_between_buffer_retrieval_attempts: longest single wait for new samples, in seconds;
            samples that arrive earlier end it.
        max_sample_age_s: samples that are older than this, in seconds, when they would enter the
            memory are dropped, a packet at a time, and counted.
        max_policy_lag_versions: samples of a policy that is more than this many versions old are
            dropped and counted, and a worker that drives with such a policy is named in the log.
        reward_window: number of the workers' newest decisions over which the mean reward is taken.
        held_out_share: share of the episodes, 0 to below 1, that are never trained on: a batch of
            them after each round gives the losses `…_held_out`. A memory receives it as `held_out`,
            if it takes this argument; 0: none is held out.
        device: where batches and the agent are; none: cuda if available, else cpu.
        profiling: print a profile after each round (needs pyinstrument).
    """

    epochs: Annotated[float, Meta(ge=1)] = 10
    rounds: Positive = 50
    steps: Positive = 2000
    metrics_interval_s: NotNegative = 0.0
    max_minutes: AboveZero = math.inf
    start_training: Natural = 0
    update_model_interval: Positive = 100
    update_model_interval_s: NotNegative = 0.0
    update_buffer_interval: Positive = 100
    max_training_steps_per_env_step: AboveZero = 1.0
    sample_uses: AboveZero | None = None
    sleep_between_buffer_retrieval_attempts: AboveZero = 0.1
    max_sample_age_s: AboveZero = math.inf
    max_policy_lag_versions: AboveZero = math.inf
    reward_window: Positive = 1000
    held_out_share: Annotated[float, Meta(ge=0, lt=1)] = 0.05
    device: str | None = None
    profiling: bool = False

    def change(self, **values: float | None) -> None:
        """Apply new values. If this raises ConfigError because one is out of range, nothing has
        changed.
        """
        before = {name: vars(self)[name] for name in values}
        vars(self).update(values)
        try:
            self.__post_init__()
        except ConfigError:
            vars(self).update(before)
            raise

    def refuse_finished(self, epoch: int, elapsed_s: float) -> None:
        """Raise FinishedError if a training that has reached this epoch and time has nothing left
        to do.
        """
        if epoch >= self.epochs:
            name = "epochs"
            what = counted(int(self.epochs), "epoch")
        elif elapsed_s >= self.max_minutes * 60:
            name = "max_minutes"
            what = f"{self.max_minutes:g} minutes"
        else:
            return
        raise FinishedError(
            f"this run has done its {what}: raise {name} (--trainer.{name}) to go on, choose "
            "another run_name, or start over with resume none (--trainer.resume none; of `run`: "
            "--fresh)"
        )


_AT_START = (
    "max_sample_age_s",
    "max_policy_lag_versions",
    "reward_window",
    "held_out_share",
    "device",
    "profiling",
)
LIVE = tuple(option.name for option in fields(Schedule) if option.name not in _AT_START)
"""Fields of a `Schedule` that may change during training."""


@dataclass(frozen=True, kw_only=True)
class RankOptions(Options):
    """How several trainers learn as one, if torchrun starts them.

    Attributes:
        backend: of `torch.distributed`: gloo, nccl, or auto: nccl if each trainer has a GPU of its
            own, else gloo.
        address: where the trainers meet, e.g. tcp://10.0.0.1:29500; none: as torchrun says
            (MASTER_ADDR and MASTER_PORT).
        interface: network interface between the trainers; none: loopback if all are on one machine,
            else the system's choice.
        start_timeout_s: longest wait, in seconds, until all trainers have connected and have built
            or loaded the training.
        timeout_s: a trainer that does not answer the others for this time, in seconds, ends them;
            one whose process ends does so at once.
        check_every_steps: training steps between two comparisons of all parameters; 0: they are not
            compared.
    """

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    address: str | None = None
    interface: str | None = None
    start_timeout_s: AboveZero = 600.0
    timeout_s: AboveZero = 60.0
    check_every_steps: Natural = 1000


@dataclass(kw_only=True, eq=False)
class TrainerOptions(Options):
    """How a trainer runs its training.

    Attributes:
        resume: what to take over from an earlier run of this name: everything (all), its memory, or
            none. Trainers that torchrun starts again take over everything.
        init_policy: a policy from which the actor of a new training starts: a policy file, RUN or
            RUN@TAG; the critics start untrained. None: the actor does too. A resumed training is
            not affected.
        sync_every_s: samples are synced to the disk at most this time, in seconds, after they were
            written to the log, and only then acknowledged as stored: no power cut loses them. 0:
            acknowledged as soon as written; a power cut may lose the last half minute.
        checkpoint_interval_s: least time between two checkpoints, in seconds; 0: one after each
            epoch. The last one is always written.
        keep_policies: how many of the newest versions the policy store keeps; those with a tag are
            always kept. A version can become the best only while it is kept, so it must be kept for
            longer than a test episode.
        tag_every_s: least time, in seconds, between versions that get a tag of their own; 0: no
            limit. If `tag_every_steps` is set as well, both must have passed.
        tag_every_steps: the same in training steps; both 0: only the best version is tagged.
        distributed: see `RankOptions`.
    """

    resume: Resume = "all"
    init_policy: str | None = None
    sync_every_s: NotNegative = 0.25
    checkpoint_interval_s: NotNegative = 0.0
    keep_policies: Positive = 100
    tag_every_s: NotNegative = 0.0
    tag_every_steps: Natural = 0
    distributed: RankOptions = field(default_factory=RankOptions)
