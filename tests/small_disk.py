"""A disk that can be filled."""

import contextlib
import shutil
import subprocess


@contextlib.contextmanager
def small_disk(disk):
    """A file system of 4 MB at `disk`; call what it gives to fill it. None: it cannot be mounted
    here.
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
        return disk / "ballast"  # to be removed where the disk shall have room again

    yield fill
    subprocess.run(["umount", "-l", str(disk)], check=True)
