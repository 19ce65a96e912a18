"""`tmrl-like keys`: who may connect."""

from __future__ import annotations

import os
import sys

from tmrl_like.cli.arguments import Arguments
from tmrl_like.config.paths import keys_folder
from tmrl_like.engine import invitation
from tmrl_like.engine.authority import Authority, is_authority
from tmrl_like.errors import ConfigError, CredentialsError, TransportError
from tmrl_like.transport.credentials import ROLES, AuthorizedKeys, KeyFolder


def main(arguments: Arguments) -> int:
    """Do one action on this machine's keys."""
    folder = KeyFolder(keys_folder(arguments.keys_dir))
    actions = {"invite": _invite, "join": _join, "revoke": _revoke, "list": _list}
    try:
        return actions[arguments.action](arguments, folder)
    except CredentialsError as error:  # here always something that the user asked for
        raise ConfigError(str(error)) from None


def _invite(arguments: Arguments, folder: KeyFolder) -> int:
    name, role = arguments.name, arguments.role
    if role in ("site", "node") or (role == "trainer" and is_authority(folder)):
        line = invitation.invite(folder, name, role)
    else:
        line = folder.invite(name, ROLES if role == "both" else (role,))
    print(f"on {name} run  tmrl-like keys join -  and paste this line, a secret:", file=sys.stderr, flush=True)
    print(line)
    return 0


def _join(arguments: Arguments, folder: KeyFolder) -> int:
    line = _pasted_line() if arguments.line == "-" else arguments.line
    if line.strip().startswith(invitation.LINE_PREFIX):
        print(f"this machine is the engine's {invitation.join(folder, line)}")
    else:
        keys = folder.join(line)
        print(f"this machine may connect as {keys.name} ({', '.join(keys.roles)})")
    return 0


def _pasted_line() -> str:
    """Standard input's first line. A terminal does not show it, nor cut it as those that can be edited: at 4,095."""
    if os.name != "posix" or not sys.stdin.isatty():
        return sys.stdin.readline()
    import termios

    before = termios.tcgetattr(sys.stdin)
    changed = termios.tcgetattr(sys.stdin)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
    print("paste the line and press Enter; it is not shown", file=sys.stderr, flush=True)
    try:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, changed)
        return sys.stdin.readline()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def _revoke(arguments: Arguments, folder: KeyFolder) -> int:
    name = arguments.name
    is_invited = (folder.path / "authorized" / f"{name}.json").exists()
    if is_authority(folder) and name in Authority(folder).nodes and not is_invited:
        raise ConfigError(f"{name} is one of the engine's nodes, which cannot be revoked: make another engine")
    if not is_authority(folder) or name not in Authority(folder).names():
        folder.revoke(name)
        print(f"{name} may no longer connect")
        return 0
    from tmrl_like.engine.revocation import push_revocations

    authority = Authority(folder)
    authority.revoke(name)
    if is_invited:
        folder.revoke(name)
    silent = push_revocations(authority)
    if not silent:
        print(f"{name} may no longer connect")
    elif len(silent) < len(authority.nodes):
        print(f"{name} may no longer connect; {', '.join(silent)} did not answer, and learns it from the others later")
    else:
        raise TransportError(
            f"{name} is revoked, but no node of the engine answers ({', '.join(silent)}): say it again when one runs"
        )
    return 0


def _list(arguments: Arguments, folder: KeyFolder) -> int:
    roles = {identity.name: list(identity.roles) for identity in AuthorizedKeys(folder).identities.values()}
    if is_authority(folder):
        authority = Authority(folder)
        for name, user in authority.users().items():
            roles[name] = [*roles.get(name, ()), f"the engine's {user.role}"]
        roles |= {node: ["the engine's node"] for node in authority.nodes}
    if not roles:
        print(f"no keys in {folder.path}: the first server that starts here makes them")
    for name, played in sorted(roles.items()):
        print(f"{name:<24} {', '.join(played)}")
    return 0
