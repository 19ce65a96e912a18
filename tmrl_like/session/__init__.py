"""A peer's session with its server: it introduces itself and sends heartbeats.

- `conversation`  the protocol of peer and server: hello, welcome, refusals, heartbeats; no thread
- `session`       a conversation that runs in its own thread
"""
