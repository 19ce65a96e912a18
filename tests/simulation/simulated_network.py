"""Links without sockets: the scheduler decides when messages move, are lost, doubled or held up."""

from __future__ import annotations

from collections import deque

from tmrl_like.transport.base import Incoming


class Connection:
    """One connection of a peer, until it breaks.

    Attributes:
        up, down: messages on their way to the server and to the peer.
        held_until: times before which nothing arrives: (at the server, at the peer).
        is_left: whether the peer has left in good order: what it sent still arrives.
        server_notices_at, peer_notices_at: when each side notices that the connection is broken;
            None: it is intact.
    """

    def __init__(self, peer_id, link, server):
        self.id = peer_id
        self.link = link
        self.server = server
        self.up = deque()
        self.down = deque()
        self.held_until = [0.0, 0.0]
        self.is_left = False
        self.server_notices_at = self.peer_notices_at = None

    @property
    def is_broken(self):
        return self.server_notices_at is not None


class SimulatedNetwork:
    """All connections, and the operations that the scheduler performs on them.

    Attributes:
        queue_messages: how many messages may be on their way in one direction of a connection.
        waits_unconnected: whether messages sent without a connection wait for one (as with zmq) or
            are refused.
    """

    def __init__(self, world, queue_messages, waits_unconnected):
        self._world = world
        self.queue_messages = queue_messages
        self.waits_unconnected = waits_unconnected
        self.connections = []
        self.links = []
        self._made = 0

    def connect(self, link):
        """Give a dialling peer a connection."""
        server = self._world.server_at(link.where)
        self._made += 1
        connection = link.connection = Connection(b"%d" % self._made, link, server)
        connection.up.extend(link.waiting)
        link.waiting.clear()
        server.link.connections[connection.id] = connection
        self.connections.append(connection)

    def deliver(self, connection, to_server, count, doubles=0):
        """Let the oldest messages arrive, the first with `doubles` copies more; return how many
        arrived.
        """
        if connection.held_until[not to_server] > self._world.now:
            return 0
        queue = connection.up if to_server else connection.down
        arrived = min(count, len(queue))
        for _ in range(arrived):
            data = queue.popleft()
            for _ in range(1 + doubles):
                if to_server:
                    connection.server.link.arrive(connection, data)
                else:
                    connection.link.inbox.append(data)
            doubles = 0
        if connection.is_left and not connection.up and not connection.is_broken:
            self.cut(connection)
        return arrived

    def cut(self, connection, server_notices_s=0.0, peer_notices_s=0.0):
        """Break a connection; return how many messages were lost with it."""
        lost = len(connection.up) + len(connection.down)
        connection.up.clear()
        connection.down.clear()
        connection.server_notices_at = self._world.now + server_notices_s
        connection.peer_notices_at = self._world.now + peer_notices_s
        self.connections.remove(connection)
        return lost

    def drop_peer(self, link):
        """Drop the link of a killed peer; some of the messages that it sent still arrive."""
        if not link.is_closed and link.connection is not None and not link.connection.is_broken:
            for _ in range(self._world.rng.randrange(len(link.connection.up) + 1)):
                link.connection.up.pop()
        link.close()

    def drop_server(self, server):
        """Drop the connections of a killed server."""
        for connection in [c for c in self.connections if c.server is server]:
            self.cut(connection, 0.0, self._world.rng.choice((0.0, 0.3)))


class SimulatedServerLink:
    """A `ServerLink` without sockets."""

    def __init__(self, world):
        self.inbox = deque()
        self.connections = {}
        self._world = world
        self._known = set()

    def arrive(self, connection, data):
        self._known.add(connection.id)
        self.inbox.append(Incoming(connection.id, connection.link.identity, data))

    def send(self, peer, data):
        connection = self.connections.get(peer)
        if connection is None or peer not in self._known:
            return False
        if connection.is_broken:
            # lost, as long as the break is not noticed
            return connection.server_notices_at > self._world.now
        if len(connection.down) >= self._world.network.queue_messages:
            return False
        connection.down.append(data)
        self._world.auditor.on_sent(data)
        return True

    def is_valid(self, key):
        return True

    def forget(self, peer):
        self._known.discard(peer)


class SimulatedPeerLink:
    """A `PeerLink` without sockets."""

    logs_itself = False

    def __init__(self, world, address, process, identity):
        self.where = address
        self.identity = identity
        self.inbox = deque()
        self.waiting = deque()
        self.connection = None
        self.is_closed = False
        self._process = process
        self._world = world
        world.network.links.append(self)

    @property
    def may_dial(self):
        """Whether this side knows of no connection and a server listens."""
        return self.is_lost and self._world.server_at(self.where).is_alive

    @property
    def is_lost(self):
        connection = self.connection
        return connection is None or (
            connection.is_broken and connection.peer_notices_at <= self._world.now
        )

    def receive(self, timeout_s):
        return self.inbox.popleft() if self.inbox else None

    def send(self, data):
        network = self._world.network
        is_lost = self.is_lost
        if not is_lost and self.connection.is_broken:
            return True  # lost: the break is not noticed yet
        queue = self.waiting if is_lost else self.connection.up
        is_taken = len(queue) < network.queue_messages and not self.is_closed
        if is_taken and (network.waits_unconnected or not is_lost):
            queue.append(data)
            self._world.auditor.on_sent(data, self._process)
            return True
        return False

    def wake(self):
        pass

    def close(self):
        if not self.is_closed:
            self.is_closed = True
            self._world.network.links.remove(self)
            if self.connection is not None and not self.connection.is_broken:
                self.connection.is_left = True
                self._world.network.deliver(self.connection, True, 0)
