"""`tmrl-like policies`: the policies that runs keep on this machine."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from pathlib import Path

from tmrl_like.base.files import write_atomically, writing
from tmrl_like.base.folders import data_folder
from tmrl_like.cli.arguments import Arguments, to_type
from tmrl_like.cli.tables import print_table
from tmrl_like.errors import ConfigError, PolicyError, expect
from tmrl_like.policies.export import write_onnx
from tmrl_like.policies.load_policy import Policy, load_policy
from tmrl_like.policies.policy_file import PolicyCard, read_policy
from tmrl_like.policies.policy_store import AUTOMATIC, FOLDER, NEWEST, PolicyStore

_COLUMNS = ["version", "tags", "published", "training steps", "return", "test episodes", "MB"]


def main(arguments: Arguments) -> int:
    """Carry out one action."""
    try:
        if arguments.place is None:
            _list(sorted((data_folder() / "runs").glob("*/")))
            return 0
        run, version = arguments.found.folder(), arguments.found.version or NEWEST
        store = PolicyStore(run / FOLDER)
        if arguments.action != "list":
            read_policy(store.find(version))  # raises if it is damaged
        if arguments.action == "export":
            _export(store, version, arguments)
        elif arguments.action == "list":
            _list([run])
        else:
            expect(
                not AUTOMATIC.fullmatch(arguments.tag),
                "the tag",
                arguments.tag,
                "a name of your own; newest, best, best-VERSION and step-STEPS are automatic",
            )
            print(f"{store.tag(version, arguments.tag)} is kept until you remove it")
    except PolicyError as error:
        raise ConfigError(str(error)) from None
    return 0


def _export(store: PolicyStore, version: str, arguments: Arguments) -> None:
    """Write a policy to a file."""
    source, file = store.find(version), arguments.file
    suffix = ".onnx" if arguments.onnx else ".safetensors"
    expect(
        file.suffix == suffix,
        "the file",
        str(file),
        f"a name that ends in {suffix} (--onnx writes .onnx)",
    )
    is_used = arguments.onnx or not arguments.allow
    expect(is_used, "--allow", arguments.allow, "--onnx beside it")
    policy = load_policy(source, allow=arguments.allow) if arguments.onnx else None
    with writing("the policy", file):
        if policy is None:
            write_atomically(file, source.read_bytes())
        else:
            write_onnx(policy, file)
    if policy is None:
        command = to_type("tmrl-like", "test", "EXPERIMENT", "--policy", file)
        print(f"{file}: {source}; drive it with `{command}`, or load_policy in Python")
    else:
        print(f"{file}: {source} as ONNX{_what_is_not_in_it(policy)}")


def _list(runs: Sequence[Path]) -> None:
    """Show the policies of each run that has any."""
    listed = {run.name: rows for run in runs if (rows := _rows(PolicyStore(run / FOLDER)))}
    for run, rows in listed.items():
        print_table(run, _COLUMNS, rows)
    if not listed:
        print("no policies yet; `tmrl-like run EXPERIMENT` makes some")


def _what_is_not_in_it(policy: Policy) -> str:
    code = policy.metadata.obs_preprocessor
    if code is None:
        return ""
    return (
        f"; its input is what {code if isinstance(code, str) else code.class_path} makes of an "
        "observation"
    )


def _rows(store: PolicyStore) -> list[list[str]]:
    """Return one row per version. A version that was tagged shows what was known when it was
    tagged.
    """
    found: dict[int, tuple[PolicyCard, int, list[str]]] = {}
    for name, card in store.cards():
        with contextlib.suppress(FileNotFoundError):  # its trainer has just removed it
            size = store.path(name).stat().st_size
            _, _, tags = found.setdefault(card.version, (card, size, []))
            tags += [] if name.isdecimal() else [name]
    return [_row(*found[version]) for version in sorted(found)]


def _row(card: PolicyCard, size: int, tags: list[str]) -> list[str]:
    published = datetime.datetime.fromtimestamp(card.published_at_s)
    return [
        f"{card.version:,}",
        ", ".join(tags),
        f"{published:%Y-%m-%d %H:%M:%S}",
        f"{card.training_steps:,}",
        "-" if card.return_ is None else f"{card.return_:.3g}",
        f"{card.episodes:,}",
        f"{size / 1e6:.2f}",
    ]
