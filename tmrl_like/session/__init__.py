"""Who is there: a peer finds one of its servers, introduces itself, stays in touch, and moves on to
the next one.

- `ring`          the servers that a peer knows, of which it dials one
- `conversation`  what peer and server say: hello, welcome, refusals, beats, silence; no thread
- `session`       a conversation in a thread of its own
"""
