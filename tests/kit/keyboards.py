"""Keys and buttons that a test holds down."""


class Keys:
    """Stands in for a keyboard, or for the buttons of a gamepad; `held` is what is pressed."""

    def __init__(self):
        self.held = set()

    def key(self, name):
        return name

    def is_down(self, key):
        return key in self.held

    def close(self):
        self.held = None
