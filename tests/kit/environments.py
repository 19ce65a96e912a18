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


def returning(change, env_cls=CountingEnv, method="step"):
    """Return a class of environments whose method returns `change(*result)`."""
    real = getattr(env_cls, method)
    how = {method: lambda *given, **options: change(*real(*given, **options))}
    return type("Changed", (env_cls,), how)


def calling(before_step, env_cls=CountingEnv):
    """Return a class of environments that call `before_step(self)` before each step."""

    class Calling(env_cls):
        def step(self, action):
            before_step(self)
            return super().step(action)

    return Calling
