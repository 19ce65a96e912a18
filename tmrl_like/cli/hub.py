"""Policies and logs to a Hugging Face hub and back: `policies push|pull`, `log --push|--pull`.

The token is the library's concern: `hf auth login`, or HF_TOKEN. What is pulled is checked as any other foreign file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tmrl_like.base.files import write_atomically
from tmrl_like.base.text import one_line
from tmrl_like.delivery.log import SUFFIX
from tmrl_like.errors import ConfigError, MissingExtraError, PolicyError, TmrlLikeError, TransportError
from tmrl_like.policies.policy_file import PolicyCard, read_policy
from tmrl_like.policies.weight_file import first_not_finite, read_file
from tmrl_like.replay.data_sets import log_files
from tmrl_like.wire.policy import MAX_POLICY_BYTES

_LOG_FILES = 4096
_LOG_BYTES = 64 << 30


def push_policy(source: Path, repository: str, name: str, public: bool) -> None:
    """Put a policy file into a repository, which is made, for yourself alone unless `public`, if it is not there."""
    with _hub() as hub:
        hub.create_repo(repository, private=not public, exist_ok=True)
        hub.upload_file(path_or_fileobj=source, path_in_repo=f"{name}.safetensors", repo_id=repository)


def pull_policy(repository: str, name: str, file: Path) -> PolicyCard | None:
    """Write a repository's policy file to `file`; returns its card.

    Raises:
        PolicyError: what is there is no policy, not finite, or larger than a GiB; nothing is written.
    """
    repository, _, revision = repository.partition("@")
    with _hub() as hub:
        file_there = f"{name}.safetensors"
        size = hub.get_hf_file_metadata(hub.hf_hub_url(repository, file_there, revision=revision or None)).size
        if size is None or size > MAX_POLICY_BYTES:
            raise PolicyError(f"{repository}: {file_there} has {size} bytes; a policy has at most {MAX_POLICY_BYTES}")
        found = Path(hub.hf_hub_download(repository, file_there, revision=revision or None))
    try:
        card, weights = read_policy(found)
        if wrong := first_not_finite(read_file(weights)):
            raise PolicyError(f"{wrong} holds values that are not finite")
    except PolicyError as error:
        raise PolicyError(f"{repository}: {error}") from None
    write_atomically(file, weights)
    return card


def push_log(path: Path, repository: str, public: bool) -> None:
    """Put a packet log into a repository for data sets, made as that of a policy. Nobody may be writing to it."""
    files = log_files(path)
    with _hub() as hub:
        hub.create_repo(repository, repo_type="dataset", private=not public, exist_ok=True)
        added = [hub.CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=file) for file in files]
        hub.create_commit(repository, added, commit_message="Add a packet log", repo_type="dataset")


def pull_log(repository: str, folder: Path) -> None:
    """Write the segments of a repository's packet log into a new folder: all of them, or, if that fails, none.

    Raises:
        ConfigError: the folder is not empty, or what is there is no packet log, or a larger one than is pulled.
    """
    if is_taken(folder):
        raise ConfigError(f"{folder} exists: choose another folder for what is pulled")
    repository, _, revision = repository.partition("@")
    of: dict[str, Any] = {"repo_type": "dataset", "revision": revision or None}
    with _hub() as hub:
        listed = itertools.islice(hub.list_repo_tree(repository, **of), _LOG_FILES + 1)
        sizes = {entry.path: getattr(entry, "size", 0) for entry in listed}
        names = [name for name in sizes if Path(name).suffix == SUFFIX]
        if not all(name.removesuffix(SUFFIX).isdecimal() for name in names) or not names:
            raise ConfigError(f"{repository} is no packet log: expected segments, 0000000001{SUFFIX} and so on")
        if len(sizes) > _LOG_FILES or sum(sizes[name] for name in names) > _LOG_BYTES:
            raise ConfigError(f"{repository} has more than {_LOG_FILES} files, or {_LOG_BYTES >> 30} GiB in segments")
        found = [Path(hub.hf_hub_download(repository, name, **of)) for name in names]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as draft:
        (whole := Path(draft, "log")).mkdir()
        for file in found:
            shutil.copyfile(file, whole / file.name)
        if folder.exists():
            folder.rmdir()
        os.rename(whole, folder)


def is_taken(folder: Path) -> bool:
    """Whether there is a file, or a folder that is not empty."""
    return folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder])


@contextlib.contextmanager
def _hub() -> Iterator[Any]:
    """The library; what fails in it is one line."""
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError("the hub needs huggingface_hub: pip install 'tmrl_like[hub]'") from None
    try:
        yield huggingface_hub
    except TmrlLikeError:
        raise
    except Exception as error:  # the library's own, and those of what it speaks HTTP with
        raise TransportError(f"the hub: {one_line(error, 300)}") from None
