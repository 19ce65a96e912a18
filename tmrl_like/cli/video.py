"""`tmrl-like test --video`: what an episode looked like, written with OpenCV. Needs no display."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tmrl_like.envs.vision import load_opencv
from tmrl_like.errors import ConfigError

_FPS = 30.0  # of an environment that says nothing about its own
_SMALLEST_PX = 384  # smaller pictures are enlarged


class Video:
    """An MP4 file that grows by one picture with each `shoot`. It is there from the first one on."""

    def __init__(self, file: str | Path) -> None:
        """Prepare.

        Args:
            file: where to; an existing one is overwritten.

        Raises:
            MissingExtraError: OpenCV cannot be loaded.
            ConfigError: no such folder.
        """
        self._cv2 = load_opencv()
        self.file = Path(file)
        if self.file.suffix != ".mp4" or not self.file.parent.is_dir():
            raise ConfigError(f"--video {file}: expected a file name ending in .mp4, in a folder that exists")
        self._writer: Any = None

    def shoot(self, env: Any) -> None:
        """Add what the environment looks like now: what its `render` returns, uint8 [H, W, 3] in RGB.

        Raises:
            ConfigError: it has no picture, or the file cannot be written.
        """
        picture = self._cv2.cvtColor(_picture_of(env), self._cv2.COLOR_RGB2BGR)
        times = -(-_SMALLEST_PX // min(picture.shape[:2]))
        if times > 1:
            picture = self._cv2.resize(picture, None, fx=times, fy=times, interpolation=self._cv2.INTER_NEAREST)
        if self._writer is None:
            codec, size = self._cv2.VideoWriter_fourcc(*"mp4v"), (picture.shape[1], picture.shape[0])
            self._writer = self._cv2.VideoWriter(str(self.file), codec, _pictures_per_s(env), size)
            if not self._writer.isOpened():
                raise ConfigError(f"--video {self.file}: OpenCV cannot write there")
        self._writer.write(picture)

    def __enter__(self) -> Video:
        return self

    def __exit__(self, *exc: object) -> None:
        """Complete the file."""
        if self._writer is not None:
            self._writer.release()


def _picture_of(env: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    try:
        picture = env.render()
    except Exception as error:  # the user's code, or no code at all
        raise _no_picture(f"raised {type(error).__name__}" + f" ({error})" * bool(str(error))) from error
    if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.shape[2:] != (3,):
        raise _no_picture(f"returned {type(picture).__name__}")
    return picture


def _no_picture(found: str) -> ConfigError:
    return ConfigError(
        f"--video needs a picture, uint8 [height, width, 3], and the environment's render() {found}: "
        "Gymnasium's own want env.init_args.gym_kwargs: {render_mode: rgb_array}; yours wants "
        "a render() that returns one"
    )


def _pictures_per_s(env: Any) -> float:
    """One picture is taken per step."""
    time_step_s = getattr(env, "time_step_s", None)
    return 1.0 / time_step_s if time_step_s else float((getattr(env, "metadata", None) or {}).get("render_fps", _FPS))
