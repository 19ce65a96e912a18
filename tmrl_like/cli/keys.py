"""`tmrl-like keys`: who may connect."""

from __future__ import annotations

import sys
from pathlib import Path

from tmrl_like.cli.arguments import Arguments
from tmrl_like.config.paths import default_keys_folder
from tmrl_like.errors import ConfigError, CredentialsError
from tmrl_like.transport.credentials import ROLES, AuthorizedKeys, KeyFolder


def main(arguments: Arguments) -> int:
    """Do one action on this machine's keys."""
    folder = KeyFolder(Path(arguments.keys_dir).expanduser() if arguments.keys_dir else default_keys_folder())
    try:
        if arguments.action == "invite":
            line = folder.invite(arguments.name, ROLES if arguments.role == "both" else (arguments.role,))
            about = f"on {arguments.name} run  tmrl-like keys join -  and paste this line, a secret:"
            print(about, file=sys.stderr, flush=True)
            print(line)
        elif arguments.action == "join":
            keys = folder.join(sys.stdin.readline() if arguments.line == "-" else arguments.line)
            print(f"this machine may connect as {keys.name} ({', '.join(keys.roles)})")
        elif arguments.action == "revoke":
            folder.revoke(arguments.name)
            print(f"{arguments.name} may no longer connect")
        else:
            identities = sorted(AuthorizedKeys(folder).identities.values(), key=lambda identity: identity.name)
            if not identities:
                print(f"no keys in {folder.path}: the first server that starts here makes them")
            for identity in identities:
                print(f"{identity.name:<24} {', '.join(identity.roles)}")
    except CredentialsError as error:  # here always something that the user asked for
        raise ConfigError(str(error)) from None
    return 0
