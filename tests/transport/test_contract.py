"""Every transport passes the contract suite that users get."""

from pathlib import Path
from typing import ClassVar

import pytest

from tmrl_like.testing.transports import TransportContract
from tmrl_like.transport import Identity, KeyFolder, PeerLink, ServerLink, TransportOptions, connect, listen


class Contract(TransportContract):
    transport: ClassVar[str]
    identity = Identity("local", ("worker", "trainer"))

    @pytest.fixture(autouse=True)
    def keys(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder = KeyFolder(Path(tmp_path_factory.mktemp("machine")) / "keys")

    def listen(self, port: int = 0, options: TransportOptions | None = None) -> ServerLink:
        return listen(self.transport, "127.0.0.1", port, self.folder, options)

    def connect(self, address: tuple[str, int], options: TransportOptions | None = None) -> PeerLink:
        return connect(self.transport, *address, self.folder, options)


class TestZmq(Contract):
    transport = "zmq"


class TestTlspyo(Contract):
    transport = "tlspyo"


class TestInproc(Contract):
    transport = "inproc"
    identity = Identity("inproc", ("worker", "trainer"))
