"""How the experiments of IQN explore less and less: an agent's numbers that fall from epoch to
epoch.
"""

from typing import Any


class Falling:
    """An `agent_scheduler`: equal factors in equal times, then the last value."""

    def __init__(self, epochs: int, **values: list[float]) -> None:
        """`values`: of each number that is in the agent's `tunable`, the first and the last one."""
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
