"""Exactly once: entries of a worker's control loop to the trainer's memory, whatever is killed.

An entry is a sample, the report of an episode or a break, and has a number: 1, 2, 3, … within its
incarnation, one control loop of one process of a worker. No other name is needed on the way.
Packets are cut when they are sent, and may be cut in another way when they are sent again. Each end
remembers how far the entries of an incarnation have come::

                 sender (the worker's)                    receiver (the trainer's)
    sent         up to here they are on their way         -
    received     need not be sent again                   in the memory, as are all before them
    stored       forgotten, their files are filled again  in the trainer's store, or the memory
    oldest       the first that is still there            what is missing before it never comes

The sender sends in order; again after a new connection, to another trainer, when it is asked to,
and after a long silence. The receiver cuts off what it has, and takes nothing behind a gap that may
still be filled.

- `sample_log`   the control thread appends entries to files mapped into memory (`segments`)
- `chain`        those files, in order, for another thread or process
- `source`       which reads entries by number there, and makes packets of them
- `sender`       sends those of one incarnation until they are stored
- `outbox`       the senders of one worker: its control loops', and dead processes' (`folder`)
- `receiver`     the trainer's bookkeeping: what to take, what to acknowledge
- `sample_store` packets on a disk, in files that are written once: the trainer's, and data sets

None of them has a thread or a clock: the time is an argument.
"""
