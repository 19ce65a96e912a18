"""What the agents that ship have in common: options, and a step that is accelerated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from msgspec import Meta
from torch import Tensor, nn

from tmrl_like.agents.acceleration import Flat, FlatAdam, Step
from tmrl_like.agents.agent import Averaging, TrainingAgent
from tmrl_like.agents.observations import RunningNorm
from tmrl_like.agents.space_layout import Space
from tmrl_like.base.factories import Factory, taken_apart
from tmrl_like.base.options import AboveZero, Options
from tmrl_like.errors import ConfigError
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.weight_file import Weights

Share = Annotated[float, Meta(ge=0, le=1)]
M = TypeVar("M", bound=nn.Module)
Kept = Annotated[float, Meta(ge=0, lt=1)]  # share of a moving average that an update keeps


@dataclass(frozen=True, kw_only=True)
class ShippedOptions(Options):
    """Options of all agents that ship.

    Attributes:
        gamma: discount per environment step.
        polyak: share of the target networks that each update keeps.
        actor_polyak: share of the actor's moving average that each update keeps; less at first. See
            the agent for what acts by the average.
        betas: decay rates of Adam's two moments, for actor and critics.
        eps: constant that Adam adds to its denominator, for actor and critics.
        acceleration: "auto" takes the fastest training step that this machine can do; "off" takes
            the losses as they are written, and autograd.
    """

    gamma: Share = 0.99
    polyak: Kept = 0.995
    actor_polyak: Kept = 0.995
    betas: tuple[Kept, Kept] = (0.9, 0.999)
    eps: AboveZero = 1e-8
    acceleration: Literal["auto", "off"] = "auto"


class ShippedAgent(TrainingAgent):
    """Base class of the agents that ship.

    Attributes:
        actor: the policy in training.
        obs_norm: the running statistics by which the built-in networks normalise, or None if none
            of them does.
        updates: number of training steps done.
    """

    page: ClassVar[type[Any]]  # `ShippedOptions`, or a subclass
    actor: ActorModule
    gamma: float
    obs_norm: RunningNorm | None
    _update: Step  # does one training step
    _step: Step  # `_update`, or an accelerated form of it

    def __init__(
        self, observation_space: Space, action_space: Space, device: str, **options: Any
    ) -> None:
        """Read the options; the networks are the subclass's."""
        super().__init__(observation_space, action_space, device)
        self.options = o = self.page(**options)
        self.gamma, self.polyak, self.actor_polyak = o.gamma, o.polyak, o.actor_polyak
        self.updates = 0
        self._step = self._update

    def _adam(self, flat: Flat, lr: float) -> FlatAdam:
        """Return an optimiser with the options."""
        return FlatAdam(flat.parameter, lr=lr, betas=self.options.betas, eps=self.options.eps)

    def join(self, ranks: Averaging) -> None:
        """See `TrainingAgent.join`."""
        super().join(ranks)
        self._step = self._update  # a CUDA graph cannot contain the exchange between ranks

    def tune(self, **values: float) -> None:
        """See `Tunable.tune`."""
        self.page(**{name: value for name, value in values.items() if name in self.tunable})
        super().tune(**values)

    def start_from(self, weights: Weights, training_steps: int = 0) -> None:
        """See `TrainingAgent.start_from`. The running statistics continue from those in the
        weights.
        """
        self.actor.load_weights(weights)
        if self.obs_norm is not None:
            self.obs_norm.go_on(training_steps)

    def get_actor(self) -> ActorModule:
        """Return the actor in training, whose parameters change with each step."""
        return self.actor


def made_by(name: str, factory: Factory, kind: type[M], *spaces: Space, **options: Any) -> M:
    """Return the network that a factory makes, which is the argument `name`; raise ConfigError if
    the network is not of this kind.
    """
    made: Any = taken_apart(factory)[0]
    if not isinstance(made, type) or issubclass(made, kind):  # others may refuse the spaces
        network = factory(*spaces, **options)
        if isinstance(network, kind):
            return network
        made = type(network)
    raise ConfigError(f"{name} makes {made.__name__}; expected {kind.__name__} or a subclass")


def soft_update(polyak: float, average: Tensor, parameter: Tensor) -> None:
    """Update an exponential moving average (EMA) in place.

    average <- polyak * average + (1 - polyak) * parameter:  the target's update in SAC's algorithm
    1, with tau = 1 - polyak.
    """
    average.data.lerp_(parameter.data, 1.0 - polyak)
