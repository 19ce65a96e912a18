"""Base class for objects whose numbers may change during training."""

from __future__ import annotations

from typing import ClassVar

from tmrl_like.errors import ConfigError


class Tunable:
    """Base class of agents and memories whose hyper-parameters may change between two training
    steps.

    Attributes:
        tunable: names of the constructor's arguments that may change; the attribute of the same
            name holds the current value.
        gamma: discount of rewards; an agent and a memory that both have one have the same. None:
            it has none.
    """

    tunable: ClassVar[tuple[str, ...]] = ()
    gamma: float | None = None

    def tune(self, **values: float) -> None:
        """Change hyper-parameters; the next training step uses the new values.

        This method sets the attributes of these names. A class whose values have a range, or are
        also kept elsewhere, overrides it, checks the values, and then calls this method.

        Raises:
            ConfigError: a name is not in `tunable`, or a value is out of its range; nothing has
                changed.
        """
        for name in values:
            if name not in self.tunable:
                known = ", ".join(self.tunable) or "nothing"
                raise ConfigError(
                    f"{name} of {type(self).__name__} cannot change while training; {known} can"
                )
        for name, value in values.items():
            setattr(self, name, value)
