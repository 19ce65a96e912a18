"""The server of a simulation: the package's own relay, under the scheduler of the world."""

from __future__ import annotations

from simulated_machines import Process
from simulated_network import SimulatedServerLink

from tmrl_like.server.relay import Relay

TICK_S, BEAT_S = 0.25, 1.0


class ServerProcess(Process):
    """A server process: the relay, and the loop around it."""

    def start(self):
        self.begin()
        self.link = SimulatedServerLink(self.world)
        self.relay = Relay(
            self.link,
            max_workers=len(self.world.workers) + self.world.rng.choice((0, 0, 5)),
            max_waiting_bytes=self.world.options.relay_bytes,
        )
        self._next_tick = self._next_beat = self.clock()

    def turn(self):
        """Do one turn of `Server._serve`."""
        for _ in range(self.world.rng.randrange(1, 30)):
            if self.link.inbox:
                self.relay.handle(self.link.inbox.popleft(), self.clock())
        self.relay.flush()
        now = self.clock()
        if now >= self._next_tick:
            self._next_tick = now + TICK_S
            self.relay.tick(now)
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            self.relay.beat()
        self.world.auditor.look_at_server(self)

    def die(self):
        super().die()
        self.world.network.drop_server(self)
