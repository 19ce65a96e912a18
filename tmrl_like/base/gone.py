"""Options, flags, commands and classes of earlier versions, and what to use instead of each."""

from __future__ import annotations

GONE: dict[str, str] = {
    "--best": "use --policy best",
    "--driver": "use --lap DRIVER",
    "--engine": "use --server.engine NODES",
    "--hz": "use --env.time_step_duration SECONDS",
    "--keys_dir": "use --keys-dir FOLDER",
    "--minutes": "use --trainer.max_minutes N; `check` counts --timing STEPS",
    "--operator": "the page only shows; take over at the robot (takeover: in the experiment)",
    "--output": "use --out FILE",
    "--print_config": "use `tmrl-like config EXPERIMENT`",
    "--public": "use `hf upload`, whose repositories are public unless --private is given",
    "--pull": "use `hf download REPO --repo-type dataset --local-dir DIR`",
    "--push": "use `hf upload REPO DIR --repo-type dataset`",
    "--rerun": "write the rollouts that `on_worker_rollout` is called with",
    "--show": "use --window",
    "--tensorboard": "use --trainer.tensorboard true",
    "--trainers": "start `tmrl-like trainer` with torchrun: docs/guide/several_trainers.md",
    "--wandb": "use --trainer.wandb true",
    "--wandb-entity": "use --trainer.wandb_entity NAME",
    "--wandb-offline": "use --trainer.wandb true and the variable WANDB_MODE=offline",
    "--wandb-project": "use --trainer.wandb_project NAME",
    "--wandb-run-id": "use --trainer.wandb_run_id ID",
    "Keys": "use KeyDriver, which reads the keyboard of the worker's machine",
    "Prioritised": (
        "memories draw uniformly: leave it out, or override `sample_indices` of a memory of your "
        "own"
    ),
    "ValueSchedule": (
        "use a number; an agent_scheduler, tune or an edited file changes it while training goes on"
    ),
    "auto_ratio_bound": "use max_training_steps_per_env_step",
    "benchmark": "use `tmrl-like check EXPERIMENT --timing 400`",
    "engine": (
        "start nats-server yourself, and use --server.engine nats://HOST: docs/guide/engine.md"
    ),
    "eval": "use `tmrl-like test RUN --interval`",
    "keep_policies_s": "use trainer.keep_policies, the number of the newest versions",
    "log": "`read_data_set` yields its samples in Python: docs/guide/memory.md",
    "max_held_samples": "use outbox.max_bytes, or outbox.spool_max_bytes",
    "max_steps_per_update": "the ratio is the training's: max_training_steps_per_env_step",
    "node": (
        "a node of an engine is a nats-server of yours, with its own certificate "
        "(docs/guide/engine.md)"
    ),
    "on_trainer_rollout": "use on_worker_rollout: the worker hands over rollouts",
    "operator": (
        "the page only shows: invite a watcher (--role watcher), and take over at the robot"
    ),
    "plot": "use `tmrl-like runs RUN --plot`",
    "prioritised": (
        "memories draw uniformly: leave it out, or override `sample_indices` of a memory of your "
        "own"
    ),
    "pull": "use `hf download REPO FILE --local-dir DIR`",
    "push": "use `policies export`, and `hf upload REPO FILE`",
    "record-reward": "use `tmrl-like record EXPERIMENT --lap script --out FILE`",
    "render": "use `tmrl-like test EXPERIMENT --window`, which draws any environment in a window",
    "replay": "`Rollout.load` reads a run's best/rollout.npz: docs/guide/best_run.md",
    "rollout_observations": "use worker.rollout_observations: the worker hands over rollouts",
    "samples": (
        "each trainer gets the samples of its own workers; for one worker start one, with a larger "
        "batch_size"
    ),
    "show": "use `tmrl-like test EXPERIMENT --window`",
    "site": (
        "a site's server dials an engine with server.engine_credentials, a file that `nsc` makes"
    ),
    "takeover_from_page": "take over at the robot (takeover: in the experiment)",
    "video_every_minutes": "use `test EXPERIMENT --video FILE` while it trains",
    "wandb_offline": "use `wandb: true` and the variable WANDB_MODE=offline",
}
"""Maps each name, as a user writes it, to a line that says what to use instead."""
