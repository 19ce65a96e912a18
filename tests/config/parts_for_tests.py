"""Classes and functions to which the experiments of these tests refer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tmrl_like.errors import ConfigError


class Net:
    def __init__(self, width: int = 3):
        self.width = width


class Change(Protocol):
    def __call__(self, number: int): ...


class Doubled:
    def __call__(self, number: int):
        return 2 * number


@dataclass(frozen=True, kw_only=True)
class Options:
    period_s: float = 0.1
    names: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    net: Net | None = None

    def __post_init__(self):
        if not self.period_s > 0:
            raise ConfigError(f"period_s is {self.period_s}; it must be positive")


class Sized:
    def __init__(self, size: int):
        self.size = size


class SizedByItself(Sized):
    def __init__(self, **options: Any):
        super().__init__(3, **options)


class Base:
    def __init__(self, depth: int = 1, mode: Literal["a", "b"] = "a"):
        self.depth = depth


class Agent(Base):
    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        device: str = "cpu",
        *,
        lr: float = 0.1,
        sizes: Sequence[int] = (1, 2),
        betas: tuple[float, float] = (0.9, 0.99),
        net_cls: Callable[..., Net] = Net,
        net: Net | None = None,
        make_net: Callable[[], Net] | None = None,
        extra: Any = None,
        limit: int | None = None,
        options: Options | None = None,
        change: Change | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        vars(self).update(locals())

    def train(self): ...
    def get_actor(self): ...


class Open:
    def __init__(self, **anything: Any):
        self.anything = anything


def preprocess(obs: Any):
    return obs


class Outer:
    class Inner:
        pass


constant = 3
