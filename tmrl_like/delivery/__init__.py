"""Exactly-once delivery of entries from a worker's control loop to the trainer's memory, whichever
process is killed.

An entry is a sample, the report of an episode, or a break. Entries are numbered 1, 2, 3, … within
their incarnation: one control loop of one process of a worker. Incarnation and number identify an
entry everywhere. Packets are formed when they are sent, and may be divided differently when they
are sent again. Each side remembers how far the entries of an incarnation have come::

                 sender (worker)                          receiver (trainer)
    sent         entries up to here have been sent        -
    received     … need not be sent again                 … are in the memory
    stored       … are deleted, their files are reused    … are in the store, or only the memory
    oldest       the first entry that is still there      earlier missing entries never come

The sender sends entries in order. It sends them again after a new connection, to another trainer,
when asked to, and after a long silence. The receiver skips entries that it has, and takes nothing
after a gap that may still be filled.

- `sample_log`   the control thread appends entries to memory-mapped files (`segments`)
- `source`       reads entries by number from these files, and makes packets of them
- `sender`       sends the entries of one incarnation until they are stored
- `outbox`       all senders of one worker: for its control loops and dead processes (`folder`)
- `receiver`     the trainer's bookkeeping: what to take, what to acknowledge
- `sample_store` packets on disk, in write-once files: the trainer's store, and data sets

None of them has a thread or a clock of its own: the time is an argument.
"""
