"""Games for tests: each owns a window, reads the keyboard, runs on its own clock, and sends its
state over TCP.

    python games.py Square|Car TITLE PORT
"""

import contextlib
import os
import socket
import struct
import sys

os.environ["SDL_AUDIODRIVER"] = "dummy"
os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
import pygame


class Square:
    """The arrow keys move a red square, and "r" returns it to the middle.

    A record is two float32: the square's position (0 to 1) and the picture's number.
    """

    size, flags, ticks_per_s = (320, 200), 0, 50
    most = 280  # pixels from the window's left to the square's, at its right end

    def __init__(self):
        self.left, self.ticks = self.most / 2, 0

    def tick(self, window, keys):
        moved = self.left + 8 * (keys[pygame.K_RIGHT] - keys[pygame.K_LEFT])
        self.left = self.most / 2 if keys[pygame.K_r] else min(max(moved, 0), self.most)
        self.ticks += 1
        window.fill((0, 0, 60))
        window.fill((255, 0, 0), (self.left, 100, 40, 40))
        window.fill((0, 255, 0), (self.ticks % 320, 0, 4, 4))
        return struct.pack("<2f", self.left / self.most, self.ticks)


class Car:
    """A stand-in for TrackMania: a road between black borders, and the plugin's telemetry.

    The arrow keys drive, and "delete" returns to the start. The car drives along z, to the finish
    at 10 m.
    """

    size, flags, ticks_per_s = (400, 300), pygame.RESIZABLE, 60
    speed, finish_z_m = 20.0, 10.0

    def __init__(self):
        self.x = self.z = 0.0

    def tick(self, window, keys):
        if keys[pygame.K_DELETE]:
            self.x = self.z = 0.0
        throttle = float(keys[pygame.K_UP])
        steering = float(keys[pygame.K_RIGHT] - keys[pygame.K_LEFT])
        self.z = min(self.z + throttle * self.speed / self.ticks_per_s, self.finish_z_m)
        self.x = min(max(self.x + 100 * steering / self.ticks_per_s, -60), 60)
        self.draw(window)
        place = (self.z, 0.0, 1.0, self.z)
        pedals = (steering, throttle, keys[pygame.K_DOWN])
        is_over = self.z == self.finish_z_m
        return struct.pack("<11f", throttle * self.speed, *place, *pedals, is_over, 1.0, 5000.0)

    def draw(self, window):
        """Draw the road as the driver sees it: further left if the car is on its right side."""
        width, height = window.get_size()
        left = width / 2 - 120 - self.x
        window.fill((0, 90, 0))
        window.fill((0, 0, 0), (left - 20, 0, 280, height))
        window.fill((120, 120, 120), (left, 0, 240, height))


def play(game, title, port):
    """Play until the window is closed, and send each record to all who are connected."""
    pygame.init()
    window = pygame.display.set_mode(game.size, game.flags)
    pygame.display.set_caption(title)
    clock, listeners = pygame.time.Clock(), []
    server = socket.create_server(("127.0.0.1", port))
    server.setblocking(False)
    while not pygame.event.get(pygame.QUIT):
        pygame.event.pump()
        record = game.tick(window, pygame.key.get_pressed())
        pygame.display.flip()
        with contextlib.suppress(BlockingIOError):
            listeners.append(server.accept()[0])
        for listener in list(listeners):
            try:
                listener.sendall(record)
            except OSError:
                listeners.remove(listener)
        clock.tick(game.ticks_per_s)


if __name__ == "__main__":
    kind, title, port = sys.argv[1:]
    play({"Square": Square, "Car": Car}[kind](), title, int(port))
