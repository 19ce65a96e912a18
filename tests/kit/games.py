"""A game for tests: it owns a window, reads the keyboard, runs on its own clock, and sends its
state over TCP.
"""

import contextlib
import os
import socket

os.environ["SDL_AUDIODRIVER"] = "dummy"
os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
import pygame


def play(title, size, port, tick, ticks_per_s, flags=0):
    """Play until the window is closed. `tick` gets the window and the pressed keys, draws, and
    returns the record to send.
    """
    pygame.init()
    window = pygame.display.set_mode(size, flags)
    pygame.display.set_caption(title)
    clock, telemetry = pygame.time.Clock(), Teller(port)
    while not pygame.event.get(pygame.QUIT):
        pygame.event.pump()
        record = tick(window, pygame.key.get_pressed())
        pygame.display.flip()
        telemetry.tell(record)
        clock.tick(ticks_per_s)


class Teller:
    """Listens on a port, and sends each record to all connected clients."""

    def __init__(self, port):
        self._server = socket.create_server(("127.0.0.1", port))
        self._server.setblocking(False)
        self._listeners = []

    def tell(self, record):
        with contextlib.suppress(BlockingIOError):
            self._listeners.append(self._server.accept()[0])
        for listener in list(self._listeners):
            try:
                listener.sendall(record)
            except OSError:
                self._listeners.remove(listener)
