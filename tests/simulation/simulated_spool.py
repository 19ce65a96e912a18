"""What a power cut leaves of a worker's folder, in which nothing is ever synced: its log, and its mapped samples.

The system writes pages and names when it likes, in any order. So after a cut each page of a file of samples is as it
was at some moment since all was written, and so is whether the file is there.
"""

from __future__ import annotations

from disk import PowerDisk

PAGE_BYTES = 512  # as small as the files; a machine's are of 4 KiB
MOMENTS = 10


class SpoolDisk:
    """The disk under the folder of one worker.

    Attributes:
        power: what is written through `base.files.disk`: the packet log.
    """

    def __init__(self, root):
        root.mkdir()
        self.power = PowerDisk(root, really_syncs=True)
        self._root = root
        self._moments = [{}]  # since all was written: files of samples, by path

    def note_new(self, path):
        """A file of samples is made; one of that name is gone."""
        for moment in self._moments:
            moment.pop(path, None)

    def write_all(self):
        """The system has written all there is."""
        self._moments = [self._seen()]
        self.power.state.write_back()

    def write_some(self):
        """The system may write what there is now."""
        self._moments[1:] = [*self._moments[1:], self._seen()][-MOMENTS:]

    def cut(self, rng):
        """Cut the power; nobody may use what was open."""
        seen, share = self._seen(), rng.choice((0.0, 0.5, 0.9, 1.0))
        moments = [*self._moments, seen]
        self.power.cut(rng)
        for path in self._seen():
            path.unlink()
        for path in sorted(set().union(*moments)):
            states = [moment.get(path) for moment in moments]
            if path.parent.is_dir() and _drawn(states, share, rng) is not None:
                path.write_bytes(_left_of(states, share, rng))
        self._moments = [self._seen()]

    def _seen(self):
        return {path: path.read_bytes() for path in sorted(self._root.rglob("*.rows"))}


def _drawn(states, share, rng):
    return states[-1] if rng.random() < share else rng.choice(states)


def _left_of(states, share, rng):
    """A file of pages of different moments; what was never written is zeros, or behind its end."""
    size = max(len(state) for state in states if state is not None)
    whole = [(state or b"").ljust(size, b"\0") for state in states if state is not None or states[0] is None]
    pages = (_drawn(whole, share, rng)[at : at + PAGE_BYTES] for at in range(0, size, PAGE_BYTES))
    content = b"".join(pages)
    if states[0] is None and rng.random() < 0.3:
        return content[: rng.randrange(0, size, PAGE_BYTES)]
    return content
