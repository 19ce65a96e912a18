"""`tmrl-like eval`: how good is a run's policy, and how sure is that?"""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import msgspec
import numpy as np

from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.logs import set_up_logging
from tmrl_like.cli.runs import folder_of
from tmrl_like.cli.stopping import INTERRUPTED, Stopper
from tmrl_like.cli.tables import print_table
from tmrl_like.cli.test import drive
from tmrl_like.config.document import Document, is_experiment_file
from tmrl_like.config.loading import Overrides, as_yaml, open_experiment, open_kept
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.experiment import experiment_of
from tmrl_like.metrics.starts import Start, read_starts
from tmrl_like.policies.policy_file import read_card
from tmrl_like.policies.policy_store import NEWEST, PolicyStore

_PARTS = ("env", "actor", "obs_preprocessor")
_DRAWS = 10_000
_COLUMNS = ["episodes", "mean", "95 % of the mean", "std", "lowest", "median", "highest", "terminated"]


def main(arguments: Arguments) -> int:
    """Drive test episodes, and print their returns' mean, spread and confidence interval."""
    set_up_logging("eval", arguments.log_level)
    stopper = Stopper(supervised=False)
    place, _, which = arguments.place.partition("@")
    folder = folder_of(place, arguments.overrides)
    of_file = is_experiment_file(place)
    start = next((start for start in reversed(read_starts(folder)) if start.experiment or start.env), None)
    if not of_file and start is None:
        raise ConfigError(
            f"{folder} says of no environment to drive it in (run.json): expected a run that was trained here; "
            "`tmrl-like runs` lists all, and `tmrl-like eval EXPERIMENT.yaml` takes an experiment's file instead"
        )
    try:
        policy = PolicyStore(folder / "policies").find(which or NEWEST)
    except PolicyError as error:
        raise ConfigError(str(error)) from None
    if of_file or start is None:
        document = open_experiment(place, arguments.overrides)
    elif start.experiment:
        document = open_kept(start.experiment, start.experiment_file, arguments.overrides, _PARTS)
    else:
        document = _of_script(start, policy, arguments.overrides)
    experiment = experiment_of(document, _PARTS)
    experiment = dataclasses.replace(experiment, worker=dataclasses.replace(experiment.worker, envs=1))
    with experiment.make_standalone(policy) as worker:
        episodes = list(drive(worker, arguments.episodes))
    if episodes:
        returns = np.array([episode.return_ for episode in episodes])
        terminated = sum(episode.terminated for episode in episodes) / len(episodes)
        print_table(f"returns of {policy}", _COLUMNS, [[*_in_words(returns), f"{terminated:.0%}"]])
    return INTERRUPTED if stopper.requested else 0


def _of_script(start: Start, policy: Path, overrides: Overrides) -> Document:
    """The environment that run.json names, with actor and preprocessor that the policy's file names.

    Raises:
        ConfigError: one of them cannot be found outside the script.
    """
    card = read_card(policy)
    preprocessor = card and card.obs_preprocessor
    parts = {"env": start.env, "actor": card.actor if card else "its file holds weights alone"}
    parts |= {"obs_preprocessor": preprocessor} if preprocessor else {}
    script = next((word for word in shlex.split(start.command) if word.endswith(".py")), "the script")
    for name, part in parts.items():
        why = part if isinstance(part, str) else ""
        if "__main__." in str(part):
            why = f"it is in {script} itself: put it into a module of its own, and train again"
        if why:
            raise ConfigError(f"{policy} was trained by a script, and its {name} cannot be made again: {why}")
    text = as_yaml(msgspec.to_builtins(parts))
    return open_kept(text, str(Path(start.folder, script)), overrides, _PARTS)


def _in_words(returns: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[str]:
    """A row under `_COLUMNS`, without its last item; a single value has neither an interval nor a spread."""
    interval, std = "-", "-"
    if len(returns) > 1:
        interval = "{:.5g} to {:.5g}".format(*confidence_interval(returns))
        std = f"{returns.std(ddof=1):.5g}"
    extremes = [f"{number:.5g}" for number in (returns.min(), np.median(returns), returns.max())]
    return [f"{len(returns)}", f"{returns.mean():.5g}", interval, std, *extremes]


def confidence_interval(returns: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    """Between which two values the mean is with 95 %: bootstrap, the percentiles of 10,000 means (Efron 1979)."""
    random = np.random.default_rng(0)
    means = [random.choice(returns, len(returns)).mean() for _ in range(_DRAWS)]
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)
