from contextlib import ExitStack, closing

import msgspec
import pytest

from tmrl_like.transport import KeyFolder, TransportOptions, connect, listen

from .exchange import introduce


class Machines:
    """The machines of a server and of peers; everything opened on them is closed at the end."""

    def __init__(self, transport, folder, stack):
        self.transport = transport
        self.folder = folder
        self.keys = KeyFolder(folder / "server")
        self.keys.server_keys()
        self._stack = stack

    def listen(self, port=0, options=None, keys=None):
        return self._stack.enter_context(
            closing(listen(self.transport, "127.0.0.1", port, keys or self.keys, options))
        )

    def connect(self, server, keys=None, options=None):
        return self._stack.enter_context(
            closing(connect(self.transport, *server.address, keys or self.keys, options))
        )

    def machine(self, name, roles=("worker",)):
        """Return the keys of another machine, which has joined the server's."""
        folder = KeyFolder(self.folder / name)
        folder.join(self.keys.invite(name, roles))
        return folder

    def stranger(self):
        """Return the keys of a machine with its own server."""
        folder = KeyFolder(self.folder / "stranger")
        folder.server_keys()
        return folder

    def altered(self, name, **changes):
        """Return the keys of a machine that joined, and whose keys were then changed."""
        folder = self.machine(name)
        keys = msgspec.structs.replace(folder.peer_keys(), **changes)
        (folder.path / "peer.json").write_bytes(msgspec.json.encode(keys))
        return folder


class Service:
    """A tlspyo server that several tests attack in turn, and a peer (the friend) that it serves
    meanwhile.
    """

    def __init__(self, machines):
        # so that connections are never closed because of time-outs
        patient = {"handshake_timeout_s": 600, "silent_after_s": 600}
        self.server = machines.listen(
            options=TransportOptions(max_message_bytes=1 << 20, **patient)
        )
        self.keys = machines.keys
        self.friend = machines.connect(self.server)

    def assert_unharmed(self):
        """Check that nothing unwanted has arrived, and that the friend is served."""
        assert self.friend.receive(0.05) is None
        assert self.server.receive(0.05) is None
        introduce(self.server, self.friend)


@pytest.fixture
def machines_for(tmp_path):
    with ExitStack() as stack:
        yield lambda transport: Machines(transport, tmp_path, stack)


@pytest.fixture(params=["zmq", "tlspyo"])
def machines(request, machines_for):
    return machines_for(request.param)


@pytest.fixture
def tls(machines_for):
    return machines_for("tlspyo")


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with ExitStack() as stack:
        service = Service(Machines("tlspyo", tmp_path_factory.mktemp("service"), stack))
        introduce(service.server, service.friend)
        yield service
