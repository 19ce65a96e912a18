"""This machine's user at the nodes of an engine, read from a credentials file."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from tmrl_like.errors import CredentialsError

_FILE = re.compile(
    r"BEGIN NATS USER JWT-+\s+([\w-]+\.([\w-]+)\.[\w-]+)\s[^$]*"
    r"BEGIN USER NKEY SEED-+\s+(S\w+)\s+-+END USER NKEY SEED"
)
_NOBODY = "local"


class _Claims(msgspec.Struct, frozen=True):
    """The part of a user's JWT that is read."""

    name: str


class EngineUser(NamedTuple):
    """A user: its name according to its JWT, the JWT, and the seed of its key.

    "local" without JWT and seed is an anonymous user.
    """

    name: str = _NOBODY
    jwt: str = ""
    seed: str = ""

    @classmethod
    def of(cls, credentials: str) -> EngineUser:
        """Return the user of a credentials file, which is read once.

        Raises:
            CredentialsError: there is no such file, or it is not a credentials file.
        """
        try:
            found = _FILE.search(Path(credentials).expanduser().read_text("ascii"))
            jwt, claims, seed = found.groups() if found else ("", "", "")
            name = msgspec.json.decode(base64.urlsafe_b64decode(claims + "==="), type=_Claims).name
        except OSError as error:
            raise CredentialsError(
                f"cannot read the engine's credentials {credentials}: {error.strerror}; "
                "server.engine_credentials names the .creds file of this machine's user"
            ) from None
        except ValueError:
            raise CredentialsError(
                f"{credentials} is no file of credentials: expected a user's JWT and its key, as "
                "`nsc generate creds` writes them"
            ) from None
        return cls(name or _NOBODY, jwt, seed)
