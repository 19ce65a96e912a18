"""The tlspyo transport: TLS, its relay and endpoints, with what they leave open closed.

tlspyo runs Twisted, and Twisted wants a process of its own. So each link has a child process::

    PeerLink ── local TCP ── child: tlspyo endpoint ══ TLS ══ child: tlspyo relay ── local TCP ── ServerLink

What crosses the network is tlspyo's protocol: its envelopes, password, hello and acknowledgements. Added
around it, see the module of each:

- `engine`: starts the child with a deadline, starts it again if it dies, ends it; a child whose parent
  was killed ends itself.
- `local`: what link and child say to each other; `child`: the process itself.
- `envelopes`: typed msgpack for both directions; nothing is ever unpickled.
- `relay`: binds the address that was asked for; every connection is alone with the server (no groups
  between peers), must prove its key in time, and may only send what is small and well formed.
- `endpoint`: dials for ever, and tells a server that is away from one that says no.
- `flow`: what both ends of a connection do alike: wait, give and expect signs of life.
- `proof`: which key a peer holds, on top of the password that all of them share.
- `links`: the two sides of the seam; sending is bounded by tlspyo's acknowledgements.
"""

from tmrl_like.transport.tlspyo.links import TlspyoPeerLink, TlspyoServerLink

__all__ = ["TlspyoPeerLink", "TlspyoServerLink"]
