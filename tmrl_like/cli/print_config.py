"""`tmrl-like config`: prints an experiment with all its defaults."""

from __future__ import annotations

from tmrl_like.cli.arguments import Arguments
from tmrl_like.config.loading import as_yaml


def main(arguments: Arguments) -> int:
    """Print the experiment as YAML."""
    print(as_yaml(arguments.experiment.with_code().as_data()), end="")
    return 0
