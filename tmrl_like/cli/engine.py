"""`tmrl-like engine`: the brokers between servers and trainers where one server is not enough."""

from __future__ import annotations

from pathlib import Path

from tmrl_like.cli.arguments import Arguments
from tmrl_like.config.experiment import is_loopback
from tmrl_like.config.paths import data_folder, default_keys_folder
from tmrl_like.engine.authority import Authority, engine_node, node_name
from tmrl_like.engine.broker import become_nats_server, write_config
from tmrl_like.engine.options import address_of
from tmrl_like.errors import ConfigError, CredentialsError, expect
from tmrl_like.transport import KeyFolder


def main(arguments: Arguments) -> int:
    """Do one action; `start` returns when the node has ended."""
    keys = KeyFolder(Path(arguments.keys_dir).expanduser() if arguments.keys_dir else default_keys_folder())
    try:
        return {"init": _init, "start": _start}[arguments.action](arguments, keys)
    except CredentialsError as error:  # here always something that the user asked for
        raise ConfigError(str(error)) from None


def _init(arguments: Arguments, keys: KeyFolder) -> int:
    nodes = tuple(node_name(node) for node in arguments.nodes.split(","))
    fits = len(set(nodes)) == len(nodes) and len(nodes) in (1, 3, 5)
    expect(fits, "--nodes", arguments.nodes, "one node, or three or five different ones")
    Authority.create(keys, nodes)
    print(f"{keys.path} holds what this engine signs with: keep a copy in a safe place")
    print("next, where each node shall run:")
    for node in nodes:
        print(f"  {node:<24} tmrl-like engine start {node}")
    if not is_loopback(address_of(nodes[0])[0]):
        print("on another machine than this one, before that:")
        print("  tmrl-like keys join -    with the line of  tmrl-like keys invite NODE --role node")
    return 0


def _start(arguments: Arguments, keys: KeyFolder) -> int:
    name = node_name(arguments.name)
    node = engine_node(keys, name)
    config = write_config(
        data_folder() / "engine" / name.replace(":", "-"),
        node,
        port=arguments.port,
        cluster_port=arguments.cluster_port,
        leaf_port=arguments.leaf_port,
        bind=arguments.bind or ("127.0.0.1" if is_loopback(address_of(name)[0]) else "0.0.0.0"),
        monitor_port=arguments.monitor_port,
    )
    return become_nats_server(config)
