"""What both ends of a connection do alike: wait, give signs of life, expect them."""

from __future__ import annotations

import time
from typing import Any, Literal

Reason = Literal["this line's messages wait", "the parent does not keep up"]


class Flow:
    """Mixed into the protocols of relay and endpoint."""

    transport: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._heard_at = time.monotonic()
        self._held: set[Reason] = set()

    def heard(self) -> None:
        """Something arrived."""
        self._heard_at = time.monotonic()

    def silent_for_s(self) -> float:
        """Time since something arrived; 0 while nobody reads."""
        return 0.0 if self._held else time.monotonic() - self._heard_at

    def hold(self, reason: Reason) -> None:
        """Do not read; TCP makes the other side wait."""
        self._held.add(reason)
        self.transport.pauseProducing()

    def release(self, reason: Reason) -> None:
        """Read again, unless there is another reason not to."""
        self._held.discard(reason)
        if not self._held:
            self.heard()
            self.transport.resumeProducing()
