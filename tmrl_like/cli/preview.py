"""Shows the pictures that it reads from standard input in a window, until they end or the user
closes it. Run as a script, by its path.
"""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING

from tmrl_like.base.processes import end_with_parent

if TYPE_CHECKING:
    from tmrl_like.envs.vision import Frame

SIZE = struct.Struct("<HH")  # height and width, sent before each picture
_TITLE = "tmrl_like"
_SMALLEST_PX = 384  # smaller pictures are enlarged
_KEYS = (ord("q"), 27)  # close the window, as its own button does


def enlarged(picture: Frame) -> Frame:
    """Enlarge a small picture by a whole factor, so that it can be seen."""
    times = -(-_SMALLEST_PX // min(picture.shape[:2]))
    return picture.repeat(times, 0).repeat(times, 1)


def main() -> None:
    """Show pictures as they come. Exits with 0 if the user closed the window, else with 1."""
    import cv2
    import numpy as np

    end_with_parent()
    cv2.namedWindow(_TITLE, cv2.WINDOW_AUTOSIZE | cv2.WINDOW_GUI_NORMAL)
    while len(head := sys.stdin.buffer.read(SIZE.size)) == SIZE.size:
        height, width = SIZE.unpack(head)
        picture = np.frombuffer(sys.stdin.buffer.read(height * width * 3), np.uint8).reshape(
            height, width, 3
        )
        cv2.imshow(_TITLE, cv2.cvtColor(enlarged(picture), cv2.COLOR_RGB2BGR))
        if cv2.waitKey(1) in _KEYS or cv2.getWindowProperty(_TITLE, cv2.WND_PROP_VISIBLE) < 1:
            return
    sys.exit(1)


if __name__ == "__main__":
    main()
