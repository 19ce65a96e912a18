"""A peer's session with its server: it connects, introduces itself, sends heartbeats, and switches
to another server when one fails.

- `ring`          the servers that a peer may use, one of which it dials
- `conversation`  the protocol of peer and server: hello, welcome, refusals, heartbeats; no thread
- `session`       a conversation that runs in its own thread
"""
