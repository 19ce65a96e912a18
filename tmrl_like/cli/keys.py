"""`tmrl-like keys`: manages who may connect."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys

from tmrl_like.cli.arguments import Arguments
from tmrl_like.config.paths import keys_folder
from tmrl_like.errors import ConfigError, CredentialsError
from tmrl_like.transport.credentials import ROLES, AuthorizedKeys, KeyFolder, PeerKeys, read_keys


def main(arguments: Arguments) -> int:
    """Carry out one action on this machine's keys."""
    folder = KeyFolder(keys_folder(arguments.keys_dir))
    actions = {"invite": _invite, "join": _join, "revoke": _revoke, "list": _list}
    try:
        actions[arguments.action](arguments, folder)
    except CredentialsError as error:  # here always caused by what the user asked for
        raise ConfigError(str(error)) from None
    except BrokenPipeError:  # nobody reads what is printed
        raise
    except OSError as error:
        raise ConfigError(
            f"cannot write keys to {folder.path}: {error.strerror}; name a folder that this user "
            "may write to: --keys-dir"
        ) from None
    return 0


def _invite(arguments: Arguments, folder: KeyFolder) -> None:
    name, role = arguments.name, arguments.role
    if getattr(sys.stdout, "name", "") == os.devnull:  # opened by `main`
        raise ConfigError("standard output is closed, where the key would be printed: open it")
    line = folder.invite(name, ROLES if role == "both" else (role,))
    try:
        print(
            f"on {name} run  tmrl-like keys join -  and paste this line, a secret:",
            file=sys.stderr,
        )
        print(line, flush=True)
    except OSError as error:
        folder.revoke(name)  # nobody has seen it
        if isinstance(error, BrokenPipeError):
            raise
        raise ConfigError(
            f"cannot write the key to standard output: {error.strerror}; make room there, and "
            "invite again"
        ) from None


def _join(arguments: Arguments, folder: KeyFolder) -> None:
    before = None
    with contextlib.suppress(CredentialsError):  # it has none that can be read
        before = read_keys(folder.path / "peer.json", PeerKeys)
    keys = folder.join(_pasted_line() if arguments.line == "-" else arguments.line)
    print(f"this machine may connect as {keys.name} ({', '.join(keys.roles)})")
    if before is not None and before.curve_public != keys.curve_public:
        print(
            f"its key before, {before.name} ({', '.join(before.roles)}), is gone: one folder holds "
            "one key"
        )


def _pasted_line() -> str:
    """Read the first line of standard input, empty if there is none; a terminal does not echo
    it.
    """
    if sys.stdin is None:  # it was closed
        return ""
    if not sys.stdin.isatty():
        return sys.stdin.readline()
    try:
        return getpass.getpass("paste the line, which is not shown, and press Enter: ")
    except EOFError:  # Ctrl-D
        print(file=sys.stderr)
        return ""


def _revoke(arguments: Arguments, folder: KeyFolder) -> None:
    folder.revoke(arguments.name)
    print(f"{arguments.name} may no longer connect")


def _list(arguments: Arguments, folder: KeyFolder) -> None:
    if not (folder.path / "authorized").is_dir():
        if not (file := folder.path / "peer.json").exists():
            print(f"no keys in {folder.path}: the first server that starts here makes them")
            return
        name = read_keys(file, PeerKeys).name
        print(f"this machine connects as {name}; `keys list` on the server's machine lists all")
        return
    roles = {
        identity.name: identity.roles for identity in AuthorizedKeys(folder).identities.values()
    }
    if not roles:
        print(
            f"nobody may connect with the keys in {folder.path}; `keys invite` makes one that may"
        )
    for name, played in sorted(roles.items()):
        print(f"{name:<24} {', '.join(played)}")
