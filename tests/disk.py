"""A simulated disk whose power may fail: it records writes through `tmrl_like.base.files.disk`, and
draws what a power cut may leave of them.

    with PowerDisk(folder) as power:
        ...                             # the code under test writes real files below `folder`
        power.cut(random.Random(1))     # `folder` as a power cut may leave it

Data written to a file may be missing in part, or read as zeros, in any order, until `sync` has
returned. The same holds for the names in a folder (new files, removals, renames) until
`sync_folder` has returned; each rename happens completely or not at all. Writes that bypass
`tmrl_like.base.files.disk` (locks, mapped files) are left as they are.

`end_at_each_operation` repeats the same work and ends it at each of its operations in turn.
"""

import contextlib
import gc
import os
import random
import shutil
import threading
import weakref
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tmrl_like.base.files import disk as product

SECTOR = 512


@dataclass(eq=False)
class File:
    synced: bytes = b""
    pending: list = field(default_factory=list)  # (position, data)

    def content(self):
        """Return the content that a process reads."""
        return self._with(self.pending)

    def sync(self):
        self.synced, self.pending = self.content(), []

    def after_a_cut(self, rng):
        share = rng.choice((0.0, 0.5, 0.9, 1.0))
        return self._with(
            [kept for change in self.pending for kept in _left_of(change, share, rng)]
        )

    def _with(self, changes):
        content = bytearray(self.synced)
        for at, data in changes:
            content += bytes(max(0, at - len(content)))
            content[at : at + len(data)] = data
        return bytes(content)


def _left_of(change, share, rng):
    at, data = change
    if rng.random() < share:
        yield change
    else:
        how = rng.choice(("nothing", "zeros", "beginning", "sectors"))
        if how == "zeros":
            yield at, bytes(len(data))
        elif how == "beginning":
            yield at, data[: rng.randrange(len(data))]
        elif how == "sectors":
            for start in range(0, len(data), SECTOR):
                if rng.random() < 0.5:
                    yield at + start, data[start : start + SECTOR]


@dataclass(eq=False)
class Folder:
    names: dict = field(default_factory=dict)  # as a process sees them
    synced: dict = field(default_factory=dict)


class State:
    """The content of the disk, and the content that a process sees."""

    def __init__(self, tree):
        """Begin with all of `tree` on the disk: content by path, None for a folder."""
        self.root = Folder()
        self._pending = []
        for path, content in tree.items():
            folder, name = self._place(path)
            folder.names[name] = folder.synced[name] = (
                Folder() if content is None else File(content)
            )

    def _folder(self, path):
        """Return the folder at a path. If it was made without `disk`, count it as synced."""
        folder = self.root
        for part in path.parts:
            if part not in folder.names:
                folder.names[part] = folder.synced[part] = Folder()
            folder = folder.names[part]
        return folder

    def open(self, path):
        """Return the new file at a path."""
        self._put(path, file := File())
        return file

    def make_folder(self, path):
        self._put(path, Folder())

    def link(self, source, path):
        self._put(path, self._at(source))

    def rename(self, source, path):
        self._change([(*self._place(source), None), (*self._place(path), self._at(source))])

    def remove(self, path):
        self._put(path, None)

    def _put(self, path, node):
        self._change([(*self._place(path), node)])

    def _place(self, path):
        """Return the folder that contains a path, and the name in it."""
        return self._folder(Path(path).parent), Path(path).name

    def _at(self, path):
        folder, name = self._place(path)
        return folder.names.get(name)

    def _change(self, changes):
        """Change names in one atomic step: tuples of folder, name and new node (None: removed)."""
        for folder, name, node in changes:
            _put(folder.names, name, node)
        self._pending.append(changes)

    def sync_folder(self, path):
        folder = self._folder(Path(path))
        pending, self._pending = self._pending, []
        for changes in pending:
            if any(changed is folder for changed, _, _ in changes):
                for changed, name, node in changes:
                    _put(changed.synced, name, node)
            else:
                self._pending.append(changes)

    def seen(self):
        """Return the tree that a new process finds after the one before was killed."""
        return _tree(self.root, lambda folder: folder.names, File.content)

    def after_a_cut(self, rng):
        """Draw a tree that a new process may find after a power cut."""
        share = rng.choice((0.0, 0.5, 1.0))
        names = {}
        for changes in self._pending:
            if rng.random() < share:
                for folder, name, node in changes:
                    _put(names.setdefault(id(folder), dict(folder.synced)), name, node)
        return _tree(
            self.root,
            lambda folder: names.get(id(folder), folder.synced),
            lambda f: f.after_a_cut(rng),
        )


def _put(names, name, node):
    names.pop(name, None)
    if node is not None:
        names[name] = node


def _tree(folder, names_of, content_of, above=""):
    tree = {}
    for name, node in sorted(names_of(folder).items()):
        path = f"{above}{name}"
        if isinstance(node, Folder):
            tree |= {path: None, **_tree(node, names_of, content_of, f"{path}/")}
        else:
            tree[path] = content_of(node)
    return tree


def write_tree(tree, root):
    root.mkdir(parents=True, exist_ok=True)
    for path, content in tree.items():
        target = root / path
        (target.parent if content is not None else target).mkdir(parents=True, exist_ok=True)
        if content is not None:
            target.write_bytes(content)
            target.chmod(0o600)  # keys must be private to their owner


def age(root):
    """Make all files look older than any live process."""
    for path in [root, *root.rglob("*")]:
        then = path.stat().st_mtime - 100_000.0
        os.utime(path, (then, then))


def read_tree(root):
    paths = sorted(path for path in root.rglob("*") if path.is_dir() or path.is_file())
    return {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else None
        for path in paths
    }


class PowerDisk:
    """Records operations on files below `root`. Several, with different roots, may be in use at
    once.

    Attributes:
        operations: the names of all operations so far, in order.
        state: the present `State` of the disk.
        before: called before each operation with its number, from 0; if it raises, the operation
            does not happen.
        is_off: discards all further writes, as of a process that is already dead.
    """

    def __init__(self, root):
        self.root = root
        self.operations = []
        self.before = lambda number: None
        self.is_off = False
        self._files = weakref.WeakKeyDictionary()  # the `File` of each open one
        self._lock = threading.RLock()
        self.begin()

    def begin(self):
        """Start recording anew, and regard the present content of the folder as synced."""
        self.operations = []
        self.state = State(read_tree(self.root))

    def cut(self, rng):
        """Cut the power: leave the folder as the next process may find it. Files that were open
        must not be used any more.
        """
        tree = self.state.after_a_cut(rng)
        for path in reversed(self.state.seen()):
            target = self.root / path
            if target.is_file():
                target.unlink()
            elif path not in tree:
                shutil.rmtree(target, ignore_errors=True)
        write_tree(tree, self.root)
        self._files.clear()
        self.begin()

    def __enter__(self):
        own = {"open": self._open, "write": self._write, "sync": self._sync}
        own["make_folder"] = self._make_folder
        for name in ("sync_folder", "rename", "link", "remove"):
            own[name] = partial(self._on_paths, name)
        self._before_us = {name: getattr(product, name) for name in own}
        for name, method in own.items():
            setattr(product, name, method)
        return self

    def __exit__(self, *exc):
        for name, method in self._before_us.items():
            setattr(product, name, method)

    def _path(self, path):
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else None

    def _do(self, name, call, note=lambda returned: None):
        """Make a call as an operation, and pass what it returns to `note`."""
        with self._lock:
            if self.is_off:
                return None
            self.before(len(self.operations))
            returned = call()
            self.operations.append(name)
            note(returned)
            return returned

    def _open(self, path, private=False):
        call = partial(self._before_us["open"], path, private)
        if (ours := self._path(path)) is None:
            return call()

        def note(file):
            self._files[file] = self.state.open(ours)

        file = self._do("open", call, note)
        if file is None:
            raise OSError(f"the power is off: {path}")
        return file

    def _write(self, file, data):
        with self._lock:
            if self.is_off:
                return
            if file not in self._files:
                self._before_us["write"](file, data)
                return
            self.before(len(self.operations))
            at = file.tell()
            try:
                self._before_us["write"](file, data)
            finally:  # a failed write may have written a part
                self.operations.append("write")
                self._files[file].pending.append((at, bytes(data[: file.tell() - at])))

    def _sync(self, file):
        if file not in self._files:
            self._before_us["sync"](file)
        else:  # it is only recorded, which takes no time
            self._do("sync", self._files[file].sync)

    def _on_paths(self, name, *paths):
        ours = [self._path(path) for path in paths]
        call = partial(self._before_us[name], *paths)
        record = partial(getattr(self.state, name), *ours)
        if None in ours:
            call()
        elif name == "sync_folder":  # it is only recorded
            self._do(name, record)
        else:
            self._do(name, call, lambda _: record())

    def _make_folder(self, path, mode=0o777):
        """Make a folder as `disk.make_folder` does, and record each of its operations."""
        if not path.is_dir():
            self._make_folder(path.parent)
            make, ours = partial(path.mkdir, mode, exist_ok=True), self._path(path)
            if ours is None:
                make()
            else:
                self._do("make_folder", make, lambda _: self.state.make_folder(ours))
            self._on_paths("sync_folder", path.parent)


class Ended(BaseException):
    """Raised in the work where the power fails or the process is killed."""


def end_at_each_operation(folder, work, check, is_cut):
    """Run `work(root, promise)` again and again, ended before each of its operations in turn, at
    last not at all; call `check(root, promised)` after each.

    Returns:
        How many operations the work has.
    """
    rng = random.Random(7)
    at, is_over = 0, False
    while not is_over:
        root, promised = folder / str(at), []
        root.mkdir()
        with PowerDisk(root) as power:

            def end(number, last=at, power=power):
                if number == last:
                    power.is_off = True
                    raise Ended

            power.before = end
            with contextlib.suppress(Ended):
                work(root, promised.append)
                is_over = True
            power.before, power.is_off = lambda number: None, False
            gc.collect()  # release the locks of the ended work
            if is_cut:
                power.cut(rng)
            check(root, promised)
        at += 1
    return at - 1
