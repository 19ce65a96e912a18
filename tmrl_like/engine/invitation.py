"""Lines that make another machine a site, a trainer or a node of an engine.

A site's line holds its signed user, and the key pair that all gateways share: robots find the same server at each of
them. A trainer's holds its signed user, and a key as a peer of a server, as without an engine. A node's holds its
certificate, and the public parts of the authority.
"""

from __future__ import annotations

import msgspec

from tmrl_like.engine.authority import Authority, EngineUser, Node, node_name, store_node, store_user
from tmrl_like.errors import CredentialsError
from tmrl_like.transport.credentials import KeyFolder, PeerKeys, ServerKeys, from_line, to_line

ENGINE_ROLES = ("site", "trainer", "node")
LINE_PREFIX = "tmrl-like-engine-1."


class Invitation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is in such a line: secrets of the machine that it is for, and none of the authority."""

    user: EngineUser | None = None
    node: Node | None = None
    peer: PeerKeys | None = None
    server: ServerKeys | None = None


def invite(keys: KeyFolder, name: str, role: str) -> str:
    """Make a line for another machine, to be pasted into `join` there.

    Raises:
        CredentialsError: the name is taken or not usable, or the engine was not made here.
        ConfigError: that is not the name of a node.
    """
    authority = Authority(keys)
    if role == "node":
        return to_line(LINE_PREFIX, Invitation(node=authority.node(node_name(name))))
    if role == "site":
        return to_line(LINE_PREFIX, Invitation(authority.invite_user(name, role), server=keys.server_keys()))
    peer = keys.authorize(name, (role,))
    try:
        return to_line(LINE_PREFIX, Invitation(authority.invite_user(name, role), peer=peer))
    except CredentialsError:
        keys.revoke(name)
        raise


def join(keys: KeyFolder, line: str) -> str:
    """Store what `invite` made; returns what this machine is now.

    Raises:
        CredentialsError: not such a line, or this machine has other keys already.
    """
    invitation = from_line(LINE_PREFIX, line, Invitation)
    if invitation.server is not None:
        keys.adopt(invitation.server)
    if invitation.peer is not None:
        keys.store_peer(invitation.peer)
    if invitation.node is not None:
        store_node(keys, invitation.node)
        return f"node {invitation.node.name}"
    if invitation.user is None:
        raise CredentialsError("the line invites nobody; copy all of what `keys invite` printed")
    store_user(keys, invitation.user)
    return f"{invitation.user.role} {invitation.user.name}"
