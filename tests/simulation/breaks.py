"""Mistakes that the simulation must notice; each is made in a copy of the package.

A break replaces one piece of the package's code by a wrong one. Histories are run with the broken
copy until one of them fails. (If entries are never asked for again, nothing is lost: they only come
later. test_simulation notices that instead, because it counts how often histories ask.)
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SEEDS, STEPS = (1000, 1999), 1000


class Break(NamedTuple):
    """A mistake: its name, its file, the right code, and the wrong code that replaces it."""

    name: str
    path: str
    right: str
    wrong: str


STORE, RECEIVER = "delivery/sample_store.py", "delivery/receiver.py"
SOURCE, SENDER, SEGMENTS = "delivery/source.py", "delivery/sender.py", "delivery/segments.py"
BREAKS = [
    Break(
        "the store's folder is not synced",
        STORE,
        "            disk.sync_folder(self.folder)\n        self._files[",
        "            pass\n        self._files[",
    ),
    Break(
        "a file of the store is not synced",
        "base/files.py",
        "            if synced:\n",
        "            if False:\n",
    ),
    Break(
        "what a power cut damaged is read",
        SEGMENTS,
        "if is_checked and self.words[CHECKED]",
        "if False",
    ),
    Break(
        "oldest is ignored", RECEIVER, "        if first_kept <= missing:\n", "        if True:\n"
    ),
    Break(
        "oldest is what is still there",
        SOURCE,
        "oldest=self.stored + 1,",
        "oldest=self.segments[0].words[FIRST],",
    ),
    Break(
        "stored is said before the sync",
        RECEIVER,
        "m.Ack(*process, progress.stored,",
        "m.Ack(*process, progress.confirmed,",
    ),
    Break(
        "received is said across a gap",
        RECEIVER,
        "elif packet.first > progress.received + 1:",
        "elif False:",
    ),
    Break(
        "a repeat is not trimmed",
        RECEIVER,
        "            skipped = samples_up_to(packet, known)\n",
        "            skipped = 0\n",
    ),
    Break(
        "a stored repeat is not trimmed",
        RECEIVER,
        "samples_up_to(packet, max(progress.received,",
        "samples_up_to(packet, max(0,",
    ),
    Break(
        "a stretch goes on behind a gap",
        RECEIVER,
        "        progress.begin_stretch(first_kept)\n",
        "        progress.received = first_kept - 1\n",
    ),
    Break(
        "training is done when the memory has it",
        RECEIVER,
        "                    if not progress.awaits:\n",
        "                    if True:\n",
    ),
    Break(
        "a segment is freed before it is stored",
        "delivery/outbox.py",
        "self._forget(ack.incarnation, ack.stored)",
        "self._forget(ack.incarnation, ack.received)",
    ),
    Break("silence is not minded", SENDER, "if is_settled or", "if True or"),
    Break(
        "what finds no room is not counted",
        "delivery/sample_log.py",
        "            self.lost_samples += 1\n",
        "            pass\n",
    ),
    Break(
        "what follows a loss continues what came before",
        "delivery/sample_log.py",
        "        self._is_gap = segment is None\n",
        "        self._is_gap = False\n",
    ),
    Break(
        "the share is of another size",
        "trainer/checkpoints.py",
        "share_of(r.worker, self.ranks.size) ==",
        "share_of(r.worker, self.ranks.size + 1) ==",
    ),
    Break(
        "nobody asks what other ranks have stored",
        "trainer/checkpoints.py",
        "            self.receiver.note_stored(own)\n",
        "            pass\n",
    ),
    Break(
        "stores of ranks that are no more are not read",
        "trainer/checkpoints.py",
        "for rank in (*mine, own)]",
        "for rank in (own,)]",
    ),
]


def seed_that_notices(broken):
    """Return the line about the first history that fails, or an empty string."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "tmrl_like")
        shutil.copytree(ROOT / "tmrl_like", package, ignore=shutil.ignore_patterns("__pycache__"))
        source = (package / broken.path).read_text()
        (package / broken.path).write_text(source.replace(broken.right, broken.wrong))
        simulate = [sys.executable, str(Path(__file__).with_name("simulate.py")), *map(str, SEEDS)]
        simulate += ["--steps", str(STEPS)]
        environment = {**os.environ, "PYTHONPATH": folder}
        done = subprocess.run(simulate, env=environment, capture_output=True, text=True)
    return done.stderr.strip()
