"""The schedule of a training, and how a trainer runs it."""

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
    """When training trains, publishes, looks for samples and ends; `TrainingOffline` has these
    fields.

    Not frozen: an `agent_scheduler` or `updater_fn` may change them while training runs.

    Attributes:
        epochs: a checkpoint is written after each; .inf trains for ever.
        rounds: rounds per epoch; metrics are shown after each.
        steps: training steps per round.
        metrics_interval_s: a round whose metrics would come sooner than so many seconds after those
            before is counted together with the next one; 0: none is.
        max_minutes: end the training after that much time, whatever is left of the epochs; the time
            before a resumption counts.
        start_training: samples to receive before the first training step.
        update_model_interval: training steps between two publications of the policy.
        update_model_interval_s: and at least so many seconds; 0: no limit.
        update_buffer_interval: training steps between two looks for new samples.
        max_training_steps_per_env_step: training pauses above this ratio, as soon as a worker has
            sent a sample; the samples of a data set count.
        sample_uses: how often each sample is trained on, on average: training pauses above
            sample_uses / batch size training steps per sample that is not held out, too; of both
            limits the lower one holds. None: only the other one does.
        sleep_between_buffer_retrieval_attempts: longest wait for new samples at a time, in seconds;
            samples that arrive earlier end it.
        max_sample_age_s: samples that are older, in seconds, when they would enter the memory are
            dropped, a packet at a time, and counted.
        max_policy_lag_versions: samples whose policy is older by more than so many versions are
            dropped and counted, and a worker that drives such a policy is named in the log.
        reward_window: decisions of the workers whose mean reward is known at any time.
        held_out_share: share of the episodes, 0 to below 1, that are never trained on: a batch of
            them after each round gives the losses `…_held_out`. A memory takes it as `held_out`, if
            it takes that; 0: none is held out.
        device: where batches and the agent are; none: cuda where there is one, else cpu.
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
        """Have other values from here on; ConfigError: one of them is out of range, and nothing has
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
        """Raise FinishedError where a training that has come so far has nothing left to do."""
        done = {"epochs": (epoch, self.epochs), "max_minutes": (elapsed_s / 60, self.max_minutes)}
        for name, (reached, asked) in done.items():
            if reached >= asked:
                what = counted(int(asked), "epoch") if name == "epochs" else f"{asked:g} minutes"
                raise FinishedError(
                    f"this run has done its {what}: raise {name} (--trainer.{name}) to go on, "
                    "choose another run_name, or start over with resume none (--trainer.resume "
                    "none; of `run`: --fresh)"
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
"""Fields of a `Schedule` that may change while training goes on."""


@dataclass(frozen=True, kw_only=True)
class RankOptions(Options):
    """How several trainers learn as one, where torchrun or `run --trainers` starts them.

    Attributes:
        backend: of `torch.distributed`: gloo, nccl or auto: nccl where each trainer has a GPU of
            its own, else gloo.
        address: where they meet, e.g. tcp://10.0.0.1:29500; none: as torchrun says (MASTER_ADDR and
            MASTER_PORT).
        interface: network interface between them; none: loopback where all are on one machine, else
            the system's.
        start_timeout_s: for all to come, and to build or load the training.
        timeout_s: a trainer that does not answer the others for so long ends them; one whose
            process ends does at once.
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
        resume: what to take over from an earlier run of this name: all of it, its memory, or none.
        init_policy: a policy that a new training's actor starts from: a policy file, RUN or
            RUN@TAG; the critics start from nothing. None: the actor does, too. A training that is
            resumed goes on as it was.
        worker_stalled_after_s: a worker that drives one policy for so long, in seconds, while newer
            ones are published is named in the log and counted; .inf: never.
        sync_every_s: samples are on the disk at most so long, in seconds, after they were written
            to the log, and are acknowledged as stored then: no power cut loses them. 0: when they
            are written; a power cut may cost the last half minute.
        checkpoint_interval_s: at least so many seconds between two checkpoints; 0: one after each
            epoch. The last one is written all the same.
        keep_policies: how many versions the policy store keeps, the newest; those with a tag stay
            for good. A version can become the best only while it is kept: let that be longer than a
            test episode.
        tag_every_s: give a version a tag of its own so often, in seconds; 0: no limit. Where
            `tag_every_steps` is set as well, both must have passed.
        tag_every_steps: likewise, in training steps; both 0: none but the best is tagged.
        distributed: see `RankOptions`.
    """

    resume: Resume = "all"
    init_policy: str | None = None
    worker_stalled_after_s: AboveZero = 30.0
    sync_every_s: NotNegative = 0.25
    checkpoint_interval_s: NotNegative = 0.0
    keep_policies: Positive = 100
    tag_every_s: NotNegative = 0.0
    tag_every_steps: Natural = 0
    distributed: RankOptions = field(default_factory=RankOptions)
