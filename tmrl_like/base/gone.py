"""Names that earlier versions knew: options, flags, commands, classes; what serves in the place of each."""

from __future__ import annotations

GONE: dict[str, str] = {
    "--best": "use --policy best",
    "--engine": "use --server.engine NODES",
    "--hz": "use --env.time_step_duration SECONDS",
    "--keys_dir": "use --keys-dir FOLDER",
    "--minutes": "use --trainer.max_minutes N; `benchmark` counts --steps",
    "--operator": "the page only shows; take over at the robot (takeover: in the experiment)",
    "--plot": "`benchmark` prints percentiles",
    "--pull": "use `hf download REPO --repo-type dataset --local-dir DIR`",
    "--push": "use `hf upload REPO DIR --repo-type dataset`",
    "--rerun": "write the rollouts that `on_worker_rollout` is called with",
    "--tensorboard": "use --trainer.tensorboard true",
    "--wandb": "use --trainer.wandb true",
    "--wandb-entity": "use --trainer.wandb_entity NAME",
    "--wandb-offline": "use --trainer.wandb true and the variable WANDB_MODE=offline",
    "--wandb-project": "use --trainer.wandb_project NAME",
    "--wandb-run-id": "use --trainer.wandb_run_id ID",
    "Keys": "KeyDriver, which reads the keyboard of the worker's machine",
    "Prioritised": "memories draw uniformly: leave it out, or override `sample_indices` of a memory of your own",
    "ValueSchedule": "a number; an agent_scheduler, tune or an edited file changes it while training goes on",
    "auto": "a number: raise it while training_steps_per_env_step_round follows and no deadline is missed",
    "auto_ratio_bound": "max_training_steps_per_env_step",
    "env_steps": "use worker.loop.env_steps, or the sum over worker.lanes where there are several environments",
    "max_steps_per_update": "the ratio is the training's: max_training_steps_per_env_step",
    "on_trainer_rollout": "on_worker_rollout (of a RolloutWorker: on_rollout)",
    "points": "a number; an agent_scheduler or an edited file changes it while training goes on",
    "prioritised": "memories draw uniformly: leave it out, or override `sample_indices` of a memory of your own",
    "pull": "use `hf download REPO FILE --local-dir DIR`",
    "push": "use `policies export`, and `hf upload REPO FILE`",
    "replay": "`Rollout.load` reads a run's best/rollout.npz: docs/guide/best_run.md",
    "takeover_from_page": "take over at the robot (takeover: in the experiment)",
    "video_every_minutes": "use `test EXPERIMENT --video FILE` while it trains",
    "wandb_offline": "use `wandb: true` and the variable WANDB_MODE=offline",
}
"""Of a name as a user writes it, one line that says what to use instead."""
