"""The trainer's side of a test, over any link."""

from tmrl_like.delivery.receiver import Receiver
from tmrl_like.trainer.trainer_link import TrainerLink
from tmrl_like.wire import messages as m


def trainer_link(link, receiver=None):
    """Return a trainer's link to an engine or to a server."""
    return TrainerLink(link, "t", m.Spaces("o", "a"), receiver or Receiver())
