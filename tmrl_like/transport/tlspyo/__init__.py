"""The tlspyo transport: tlspyo's protocol over TLS, its server and client classes, a password for each key.

- `reactor`: Twisted's event loop, in one thread of this process.
- `connection`: tlspyo's envelopes as typed msgpack, and what both ends of a connection do.
- `password`: how a peer's key becomes its password.
- `server`, `peer`: the two sides of the seam.

tlspyo's own `Relay` and `Endpoint` are not used: they unpickle, share one password among all, let peers address each
other, have no limits, and run in processes that outlive a killed parent.
"""

from tmrl_like.transport.tlspyo.peer import TlspyoPeerLink
from tmrl_like.transport.tlspyo.tlspyo_server import TlspyoServerLink

__all__ = ["TlspyoPeerLink", "TlspyoServerLink"]
