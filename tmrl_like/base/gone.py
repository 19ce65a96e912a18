"""Names that earlier versions knew: options, flags, commands, classes; what serves in the place of each."""

from __future__ import annotations

GONE: dict[str, str] = {
    "--hz": "use --env.time_step_duration SECONDS",
    "--plot": "`benchmark` prints percentiles",
    "--pull": "use `hf download REPO --repo-type dataset --local-dir DIR`",
    "--push": "use `hf upload REPO DIR --repo-type dataset`",
    "pull": "use `hf download REPO FILE --local-dir DIR`",
    "push": "use `policies export`, and `hf upload REPO FILE`",
    "replay": "`Rollout.load` reads a run's best/rollout.npz: docs/guide/best_run.md",
}
"""Of a name as a user writes it, one line that says what to use instead."""
