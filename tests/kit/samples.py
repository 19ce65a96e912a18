"""Samples as a control loop appends them."""

from typing import Any


class AppendedSamples:
    """Stands in for a `SampleLog`: keeps the arguments of each `append`, the sample first."""

    alarm = ""

    def __init__(self) -> None:
        self.taken: list[tuple[Any, ...]] = []

    def append(self, *arguments: Any) -> None:
        self.taken.append(arguments)

    def end_episode(self, stats: Any) -> None:
        """Nothing follows from it."""
