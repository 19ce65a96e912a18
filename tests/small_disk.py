"""A small disk that a test can fill."""

import contextlib
import shutil
import subprocess


@contextlib.contextmanager
def small_disk(disk):
    """Mount a file system of 4 MB at `disk`, and yield a function that fills it, or None if
    mounting is not possible.
    """
    disk.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        yield None
        return

    def fill():
        with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        return disk / "ballast"  # remove this file to free the disk again

    yield fill
    subprocess.run(["umount", "-l", str(disk)], check=True)
