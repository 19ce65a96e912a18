"""A schedule that reduces exploration from epoch to epoch, used by the experiments with IQN."""

from typing import Any


class Falling:
    """An `agent_scheduler` that changes values by a constant factor per epoch, down to a last
    value.
    """

    def __init__(self, epochs: int, **values: list[float]) -> None:
        """Set the range of each value, and how long it takes to fall.

        Args:
            epochs: number of epochs after which the last values are reached.
            values: first and last value of each number, by its name in the agent's `tunable`.
        """
        self._epochs = epochs
        self._values = values

    def __call__(self, agent: Any, epoch: int) -> None:
        share = min(1.0, epoch / self._epochs)
        agent.tune(
            **{
                name: first * (last / first) ** share
                for name, (first, last) in self._values.items()
            }
        )
