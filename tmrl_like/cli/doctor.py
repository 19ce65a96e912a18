"""`tmrl-like doctor`: finds problems that an experiment would have on this machine, and names their
cures. It changes nothing.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

import tmrl_like
from tmrl_like.base import tree
from tmrl_like.base.factories import argument_of
from tmrl_like.base.text import counted, duration, one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.logs import set_up_logging
from tmrl_like.cli.prepare import TO_COLLECT, prepare
from tmrl_like.config.settings import Settings, is_loopback
from tmrl_like.delivery.folder import shared_memory
from tmrl_like.engine.options import address_of
from tmrl_like.errors import ConfigError, CredentialsError, RefusedError, TmrlLikeError
from tmrl_like.transport import PeerLink, server_address
from tmrl_like.transport.addresses import written
from tmrl_like.transport.credentials import PeerKeys, ServerKeys, read_keys
from tmrl_like.wire import messages as m

OK, WARNING, PROBLEM = "ok", "warning", "problem"
Finding: TypeAlias = tuple[str, str]  # (state, one line of text)

WAIT_S = 2.0  # longest wait for an answer, and longest measurement of the environment
HANGS_AFTER_S = 60.0  # for one check, which may load torch or the user's code
_STEPS, _PINGS = 300, 3
LATE_SHARE, _CLOCK_S = 0.01, 1.0
_LISTENS = OK, "the port is open"


@dataclass
class Load:
    """The load that an experiment puts on disk and network; 0: not known."""

    sample_bytes: int = 0
    kept_bytes: int = 0
    samples_per_s: float = 0.0


def main(arguments: Arguments) -> int:
    """Print a line for each finding; return 1 if there is a problem, else 0."""
    if arguments.log_level == "info":
        set_up_logging("doctor", "error")
    load = Load()
    settings = Settings() if arguments.place is None else arguments.experiment
    checks = {"versions": _versions()}
    if arguments.place is not None:
        checks["environment"] = _environment(arguments, load)
    checks["device"] = _device(settings)
    checks["disk"] = _disk(settings, load)
    checks["keys"] = _keys(settings)
    if arguments.place is not None:
        address = server_address(settings.server.host, settings.server.port)
        checks[f"server {written(*address)}"] = _server(settings, load, address)
        for node in settings.engine.nodes if settings.engine else ():
            checks[f"engine {node}"] = _knock(*address_of(node), "nats-server")
    states = [state for about, findings in checks.items() for state in _examine(about, findings)]
    problems = states.count(PROBLEM)
    print(f"{counted(problems, 'problem')}, {counted(states.count(WARNING), 'warning')}")
    return int(problems > 0)


def _examine(about: str, findings: Iterator[Finding]) -> list[str]:
    """Run one check in a thread, because it may hang, and print its findings; return their
    states.
    """
    found: list[Finding] = []

    def look() -> None:
        try:
            for finding in findings:
                found.append(finding)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            text = str(error) if isinstance(error, TmrlLikeError) else one_line(error)
            found.append((PROBLEM, text))

    thread = start_thread(look, "tmrl-doctor")
    thread.join(HANGS_AFTER_S)
    if thread.is_alive():
        found.append((PROBLEM, f"hangs: nothing after {duration(HANGS_AFTER_S)}"))
    shown = list(found)
    for state, line in shown:
        print(f"{state:<8} {about}: {line}")
    return [state for state, _ in shown]


def _judge(is_fine: bool, otherwise: str, text: str, cure: str) -> Finding:
    return (OK, text) if is_fine else (otherwise, f"{text}: {cure}")


# -- this machine ----------------------------------------------------------------------------------


def _versions() -> Iterator[Finding]:
    found = [f"tmrl_like {tmrl_like.__version__}", f"Python {platform.python_version()}"]
    for name in ("torch", "numpy", "gymnasium", "rtgym", "pyzmq"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            yield (
                WARNING,
                f"{name} is not installed: pip install {name}, unless what runs here does without "
                "it",
            )
    yield (
        OK,
        f"{', '.join(found)}; {platform.system()} {platform.machine()}, "
        f"{counted(os.cpu_count() or 1, 'core')}",
    )


def _device(settings: Settings) -> Iterator[Finding]:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":  # but something that torch needs
            raise
        return  # `_versions` says so; a worker without torch is fine

    from tmrl_like.policies.actor import refuse_device

    for section, name in (("trainer", settings.trainer.device), ("worker", settings.worker.device)):
        try:
            refuse_device(name or "cpu")
        except ConfigError as error:
            yield (
                PROBLEM,
                f"{section}.{error}: take cpu, or install the driver and a torch with CUDA",
            )
    has_cuda = torch.cuda.is_available()
    yield (
        OK,
        f"CUDA on {torch.cuda.get_device_name()}"
        if has_cuda
        else "no CUDA: training is on the processor",
    )


def _disk(settings: Settings, load: Load) -> Iterator[Finding]:
    folder = next(f for f in (settings.paths.folder, *settings.paths.folder.parents) if f.exists())
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        yield (
            PROBLEM,
            f"cannot write to {folder} ({error.strerror}): chown it, make room, or set "
            "TMRL_LIKE_HOME",
        )
        return
    free = shutil.disk_usage(folder).free
    yield _judge(
        load.kept_bytes < free,
        PROBLEM,
        f"{free / 1e9:,.1f} GB are free, and a full memory's log takes up to "
        f"{load.kept_bytes / 1e9:,.2f} GB",
        "make room, or lower memory_size",
    )
    free, kept = shutil.disk_usage(shared_memory()).free, settings.worker.outbox.max_bytes
    yield _judge(
        kept < free,
        WARNING,
        f"{free / 1e6:,.0f} MB are free in {shared_memory()}, and a worker keeps up to "
        f"{kept / 1e6:,.0f} MB there",
        "docker run --shm-size 1g, or a lower worker.outbox.max_bytes",
    )


def _keys(settings: Settings) -> Iterator[Finding]:
    folder = settings.server.keys.path
    found = [name for name in ("peer.json", "server.json") if (folder / name).exists()]
    for name in found:
        read_keys(folder / name, PeerKeys if name == "peer.json" else ServerKeys)
    if not found:
        yield OK, f"none in {folder}; the first part of a run on this machine alone makes them"
        return
    is_closed = os.name != "posix" or not folder.stat().st_mode & 0o022
    text = f"{folder} holds {' and '.join(found)}"
    yield _judge(
        is_closed,
        PROBLEM,
        f"{text}{'' if is_closed else ', and others may write to it'}",
        f"chmod 700 {folder}",
    )


# -- the experiment --------------------------------------------------------------------------------


def _environment(arguments: Arguments, load: Load) -> Iterator[Finding]:
    experiment = prepare(arguments, (*TO_COLLECT, "memory"))
    with experiment.make_standalone() as worker:
        env, compress = worker.loop.env, experiment.compressor
        sample: Any = (
            worker.env.action_space.sample(),
            worker.env.observation_space.sample(),
            0.0,
            False,
            False,
            {},
        )
        sample = sample if compress is None else compress(*sample)
        load.sample_bytes = sum(np.asarray(leaf).nbytes for leaf in tree.leaves(sample))
        kept = argument_of(experiment.memory, "memory_size")
        load.kept_bytes = load.sample_bytes * kept if isinstance(kept, int) else 0
        if env.moves_hardware:
            yield (
                OK,
                "it moves hardware, and is left alone; `tmrl-like check --timing 400` measures its "
                "time-steps",
            )
            return
        worker.measure(1)  # a first reset and step, in which code loads what it needs
        timer = threading.Timer(WAIT_S, worker.stop)
        timer.start()
        times = worker.measure(_STEPS)
        timer.cancel()
        steps = len(times)
        median_s, most_s = np.percentile(times.period_s, (50, 99)) if steps else (WAIT_S, WAIT_S)
        load.samples_per_s = experiment.worker.envs / median_s
        asked = f", {duration(env.time_step_s)} asked for" if env.time_step_s else ""
        text = f"{counted(steps, 'step')} of {duration(median_s)} (99 %: {duration(most_s)}{asked})"
        cure = "end other programs, raise time_step_duration, or see docs/guide/realtime.md"
        is_fine = steps > 0 and times.overruns <= LATE_SHARE * steps
        yield _judge(is_fine, WARNING, f"{text}, {counted(times.overruns, 'overrun')}", cure)


def _knock(host: str, port: int, command: str) -> Iterator[Finding]:
    """Look up the host and try to connect; yield `_LISTENS` if the port is open."""
    try:
        socket.create_connection((host, port), WAIT_S).close()
    except socket.gaierror as error:
        yield (
            PROBLEM,
            f"there is no host {host} ({error.strerror}): correct the name, or the name server",
        )
    except OSError as error:
        if is_loopback(host):
            yield OK, f"nobody listens on port {port} of this machine yet: {command} does"
        else:
            yield (
                PROBLEM,
                f"port {port} of {host} does not answer ({error.strerror or error}): {command} "
                "there, open the port in its firewall, or correct the address",
            )
    else:
        yield _LISTENS


def _server(settings: Settings, load: Load, address: tuple[str, int]) -> Iterator[Finding]:
    (found,) = _knock(*address, "`tmrl-like run` or `tmrl-like server`")
    yield found
    if found != _LISTENS:
        return
    if not (settings.server.keys.path / "peer.json").exists():
        yield (
            PROBLEM,
            "this machine has no key: there `tmrl-like keys invite NAME`, here `tmrl-like keys "
            "join -`",
        )
        return
    with contextlib.closing(settings.server.dial()) as link:
        yield from talk(link, load)


def talk(link: PeerLink, load: Load) -> Iterator[Finding]:
    """Ask the server at the other end of a link what it is, and measure the link."""
    trip_s, ahead_s, server = _quickest(link, 0)
    yield OK, f"takes this machine's key, {server.key}, for {' and '.join(server.roles)}"
    yield _judge(
        server.software == tmrl_like.__version__,
        WARNING,
        f"runs tmrl_like {server.software}, this machine {tmrl_like.__version__}",
        "upgrade the older one",
    )
    yield _judge(
        abs(ahead_s) < _CLOCK_S + trip_s,
        WARNING,
        f"its clock is {duration(abs(ahead_s))} {'ahead' if ahead_s > 0 else 'behind'}",
        "times in logs do not agree; let NTP set both clocks",
    )
    size = m.MAX_PROBE_BYTES if _ask(link, 1 << 14)[0] < WAIT_S / 100 else 1 << 14
    took_s = _quickest(link, size)[0]
    # little data says little of a long link: all but a tenth may have been the way
    rate = 2 * size / max(took_s - trip_s, took_s / 10)
    needs = load.sample_bytes * load.samples_per_s
    yield _judge(
        needs < rate,
        PROBLEM,
        f"{rate / 1e6:,.2f} MB/s and {duration(trip_s)} there and back; a worker sends up to "
        f"{needs / 1e6:,.2f} MB/s",
        "a faster link, smaller observations, or longer time-steps",
    )


def _quickest(link: PeerLink, size: int) -> tuple[float, float, m.Probe]:
    return min((_ask(link, size) for _ in range(_PINGS)), key=lambda answer: answer[0])


def _ask(link: PeerLink, size: int) -> tuple[float, float, m.Probe]:
    """Send a probe of `size` bytes; return the round-trip time in seconds, how far the server's
    clock is ahead in seconds, and the answer.

    Raises:
        CredentialsError: the server refuses the key, or does not answer.
        RefusedError: the server says why it does not answer, or uses another version of the wire
            format.
    """
    until, probe, started = time.monotonic() + WAIT_S, m.encode(m.Probe(), bytes(size)), 0.0
    while (left_s := until - time.monotonic()) > 0:
        now = time.perf_counter()
        if not started and link.send(probe):
            started = now
        answer = link.receive(left_s if started else 0.01)
        try:
            message = None if answer is None else m.decode(answer)[0]
        except m.WireVersionError as error:
            raise RefusedError(f"the server speaks {error}: upgrade the older of the two") from None
        if isinstance(message, m.Refusal):
            raise RefusedError(message.reason)
        if isinstance(message, m.Probe):
            trip_s = time.perf_counter() - started
            return trip_s, message.time_s + trip_s / 2 - time.time(), message
    raise CredentialsError(
        "it does not answer this machine's key: it is another server (correct server.host, or join "
        "it with `tmrl-like keys join -`), or runs another version of tmrl_like"
    )
