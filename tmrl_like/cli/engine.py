"""`tmrl-like engine`: the brokers between servers and trainers where one server is not enough."""

from __future__ import annotations

from tmrl_like.base.text import counted, duration
from tmrl_like.cli.arguments import Arguments
from tmrl_like.config.experiment import is_loopback
from tmrl_like.config.paths import data_folder, keys_folder
from tmrl_like.engine.authority import Authority, engine_node, engine_user, node_name
from tmrl_like.engine.broker import become_nats_server, write_config, write_leaf_config
from tmrl_like.engine.options import DEFAULT_PORT, address_of, node_url
from tmrl_like.engine.status import Stream, forget, look, place
from tmrl_like.errors import ConfigError, CredentialsError, TransportError, expect
from tmrl_like.transport import KeyFolder


def main(arguments: Arguments) -> int:
    """Do one action; `start` and `leaf` return when the node has ended."""
    keys = KeyFolder(keys_folder(arguments.keys_dir))
    actions = {"init": _init, "start": _start, "leaf": _leaf, "status": _status, "forget": _forget}
    try:
        return actions[arguments.action](arguments, keys)
    except CredentialsError as error:  # here always something that the user asked for
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename}: {error.strerror}") from None


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


def _leaf(arguments: Arguments, keys: KeyFolder) -> int:
    site = engine_user(keys, "site")
    assert site.leaf is not None
    hub = tuple(node_name(node) for node in arguments.hub.split(",")) if arguments.hub else site.nodes
    config = write_leaf_config(
        data_folder() / "engine" / f"leaf-{site.name}",
        site.leaf,
        hub,
        port=arguments.port or DEFAULT_PORT,
        bind=arguments.bind or "127.0.0.1",
        monitor_port=arguments.monitor_port,
    )
    return become_nats_server(config)


def _forget(arguments: Arguments, keys: KeyFolder) -> int:
    authority, run = Authority(keys), arguments.run
    status = look([node_url(node) for node in authority.nodes], authority.local_user("trainer"))
    streams = {site: stream for (of, site), stream in status.streams.items() if of == run}
    reached = [node for node, problem in status.nodes.items() if not problem]
    if not streams:
        known = f"there are: {', '.join(status.runs()) or 'none'}" if reached else "no node answers"
        raise ConfigError(f"no stream of a run {run!r} is found; {known}")
    if run in status.trainers:
        raise ConfigError(f"the trainer {status.trainers[run]} reads this run's streams: end it first")
    waiting = sum(stream.state.messages for stream in streams.values() if stream is not None)
    if waiting and not arguments.lose_samples:
        what = counted(waiting, "message")
        raise ConfigError(f"{what} of this run wait for its trainer: start that, or give --lose-samples")
    if left := forget(run, list(streams), reached, authority.local_user("admin")):
        raise TransportError(f"not deleted: the stream of run {run} at {' and '.join(map(place, left))}; try again")
    where = " and ".join(map(place, streams))
    print(f"nothing of run {run} is left at {where}; a leaf whose gateway does not run keeps what it has")
    return 0


def _status(arguments: Arguments, keys: KeyFolder) -> int:
    asked = tuple(map(node_url, arguments.engine.split(","))) if arguments.engine else ()
    user = engine_user(keys, "trainer")
    status = look(asked or tuple(map(node_url, user.nodes)), user)
    for node, problem in status.nodes.items():
        print(f"{node:<32} {problem or 'answers'}")
    for run in status.runs():
        print(f"\nrun {run}: {'trainer ' + status.trainers[run] if run in status.trainers else 'no trainer'}")
        for (of, site), stream in status.streams.items():
            if of == run:
                print(f"  {place(site):<24} {_stream(stream)}")
        for gateway in status.gateways:
            if gateway.run == run:
                wants = ", waits for a policy" if gateway.state.policy_wanted else ""
                workers = counted(gateway.state.workers, "worker")
                print(f"  {'gateway of ' + gateway.site:<24} {workers}, {gateway.samples_per_s:,.0f} samples/s{wants}")
    problems = list(status.problems())
    print("\n" + "\n".join(f"wrong: {problem}" for problem in problems) if problems else "\nall is well")
    return int(bool(problems))


def _stream(stream: Stream | None) -> str:
    if stream is None:
        return "no leader"
    state, limit = stream.state, stream.config.max_bytes
    waits = f"{counted(state.messages, 'message')}, {state.bytes / 2**20:,.1f} of {limit / 2**20:,.0f} MiB"
    oldest = f", the oldest {duration(stream.oldest_s)} old" if state.messages else ""
    copies = [f"{r.name} ({'away' if r.offline else f'{r.lag:,} behind'})" for r in stream.cluster.replicas]
    if stream.config.num_replicas == 1:
        return f"{waits}{oldest}"
    return f"{waits}{oldest}; {', '.join(['leader ' + (stream.cluster.leader or 'none'), *copies])}"
