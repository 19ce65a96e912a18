"""What a person holds down, said by a test."""


class Keys:
    """A keyboard without a screen, and the buttons of a gamepad."""

    def __init__(self):
        self.held = set()

    def key(self, name):
        return name

    def is_down(self, key):
        return key in self.held

    def close(self):
        self.held = None
