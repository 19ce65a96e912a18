"""What has numbers that may change while training."""

from __future__ import annotations

from typing import ClassVar

from tmrl_like.errors import ConfigError


class Tunable:
    """Agents and memories whose hyper-parameters may change between two training steps.

    Attributes:
        tunable: names of the constructor's arguments that may; an attribute of each name holds the
            value in force.
    """

    tunable: ClassVar[tuple[str, ...]] = ()

    def tune(self, **values: float) -> None:
        """Change values: here the attributes of these names. The next training step goes by them.

        A class whose values have a range, or are kept elsewhere as well, checks them before it
        calls this.

        Raises:
            ConfigError: a name that is not in `tunable`, or a value out of its range; nothing has
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
