"""Ports on which no process listens."""

import contextlib
import socket


def free_ports(count):
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def free_port():
    return free_ports(1)[0]
