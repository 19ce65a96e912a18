"""Classes of environments and actors that differ from the fakes in one call."""

from kit.fakes import CountingEnv, LinearActor


def acting(act):
    """Return a class of actors whose actions are `act(obs)`."""
    return type("Acting", (LinearActor,), {"act": lambda self, obs, test=False: act(obs)})


class Recording(CountingEnv):
    """An environment that records the first number of each action in `sent`."""

    def __post_init__(self):
        super().__post_init__()
        self.sent = []

    def step(self, action):
        self.sent.append(float(action[0]))
        return super().step(action)


def returning(change, env_cls=CountingEnv):
    """Return a class of environments whose steps return `change(*result)`."""

    class Changed(env_cls):
        def step(self, action):
            return change(*super().step(action))

    return Changed


def calling(before_step, env_cls=CountingEnv):
    """Return a class of environments that call `before_step(self)` before each step."""

    class Calling(env_cls):
        def step(self, action):
            before_step(self)
            return super().step(action)

    return Calling
