"""The proxy alone, without a pipeline."""

import contextlib
import math
import socket
import socketserver
import threading

import pytest
from link_proxy import LinkProxy


class Echo(socketserver.BaseRequestHandler):
    """Returns all data, and closes when the other side closes."""

    def handle(self):
        with contextlib.suppress(OSError):
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)


@pytest.fixture
def proxy():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with LinkProxy(*server.server_address) as proxy:
            yield proxy
        server.shutdown()


@pytest.fixture
def connection(proxy):
    with socket.create_connection(proxy.address, timeout=60) as sock:
        yield sock


def ask(sock, data=b"hello"):
    sock.sendall(data)
    answer = b""
    while len(answer) < len(data) and (more := sock.recv(1 << 16)):
        answer += more
    return answer


def is_broken(sock):
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def test_a_cut_breaks_connections_and_lets_new_ones_in(proxy, connection):
    assert ask(connection) == b"hello"
    proxy.cut()
    assert is_broken(connection)
    with socket.create_connection(proxy.address, timeout=60) as again:
        assert ask(again) == b"hello"
    assert proxy.accepted == 2


def test_noise_flips_single_bits_about_as_often_as_asked_and_the_same_ones_again(proxy, connection):
    def noisy():
        proxy.corrupt(1000, seed=3)
        return b"".join(ask(connection, bytes(1000)) for _ in range(100))

    answer = noisy()
    assert 130 < sum(map(int.bit_count, answer)) < 270  # in 200 kB
    assert noisy() == answer
    proxy.corrupt(math.inf)
    assert ask(connection) == b"hello"
