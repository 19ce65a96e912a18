"""Exactly once: packets of samples from a worker's control loop to the trainer's memory, whatever is killed.

A packet is sealed once, by the worker, and never rewritten: header, columns, length and checksum stay as they are on
the wire, in the worker's log and in the trainer's. It is named by (worker, incarnation, sequence): which worker, which
process of it, and 1, 2, 3, … within that process. Its state, as the two ends know it::

                      sender (the worker's)                    receiver (the trainer's)
    produced     kept; not sent yet                       -
    in flight    kept; sent, counts for the window        may be on its way, lost, doubled, out of order
    received     kept; no longer counts for the window    in the memory; all before it are, too, or are dropped
    stored       forgotten                                in the trainer's log (without one: in the memory)
    dropped      given up: the limits were reached, or    passed over: the next packet begins another stream
                 the packet cannot be read any more

    produced --sent--> in flight --acknowledged--> received --acknowledged--> stored
        ^                  |
        +---retransmit-----+   a gap, a new connection, another trainer, or a long silence

Both ends move on by one rule each. The sender sends in order, and says with each bundle which packet it keeps right
before the first one: what is missing between two that it names never comes. The receiver takes the packet that
follows the last one it took; it drops what it has, and takes nothing behind a gap that may still be filled.

- `sample_log` the control thread appends samples to files that are mapped into memory (`segments`)
- `reader`     another thread or process reads them, decides where packets end, and seals packets
- `log`        the append-only log of packets: the worker's, the trainer's, and a data set
- `sender`     the worker's packets until they are stored
- `outbox`     reader, log and sender of one worker
- `receiver`   the trainer's bookkeeping: what to take, what to acknowledge

None of them has a thread or a clock: the time is an argument.
"""
