"""Everything tmrl_like raises on purpose, on one page.

    TmrlLikeError
    ├── ConfigError              a file, a key or an argument of the user's is wrong
    │   └── FinishedError        a run that has done its epochs or its minutes
    ├── MissingExtraError        an optional package is needed and not installed
    ├── EncodingError            a sample holds something that cannot cross the wire, by name
    ├── DecodingError            bytes that are not what they claim to be
    │   └── OversizeError        a length above its limit; nothing was allocated
    ├── TransportError           the link itself
    │   ├── AddressInUseError    the server's port is taken
    │   └── CredentialsError     no key, a wrong key, a key for another role
    ├── RefusedError             the server said no, and why
    ├── NoWorkerError            the workers of this very script have failed, and no other drives
    ├── PolicyError              weights that do not fit this actor, or are not fit to act
    │   └── DamagedPolicyError   a file of weights that is not as it was written
    ├── EnvironmentFaultError    the user's environment raised
    │   └── EnvironmentAwayError   the simulator, game or robot that it drives is not there
    ├── MemoryContractError      a user's memory, compressor or preprocessor broke its contract
    │   └── PipelineMismatchError   CRC debugging: a rebuilt transition differs from the original
    ├── RankError                several trainers: one is gone or silent, or their parameters differ
    ├── DivergedError            training has led to weights that are not finite
    ├── ShortageError            the system gives no more threads, processes or memory
    └── CheckpointError          a checkpoint that cannot be read or written

A message says what was expected, what was found and what to do next. Foreign exceptions are mapped
to these at one border each (transport, configuration, checkpoint) and nowhere else.
"""


class TmrlLikeError(Exception):
    """Base class: `except TmrlLikeError` catches everything below, and nothing that is a bug.

    The command line prints the message as one line and exits with `exit_code`.
    """

    exit_code = 1


class ConfigError(TmrlLikeError):
    """A file, key or argument given by the user is wrong.

    The message names the file, the line and the key, and the nearest name that exists. Correct it
    and start again. If an experiment is edited into an error while it trains, training goes on with
    the old values.
    """

    exit_code = 2


class FinishedError(ConfigError, SystemExit):
    """A run has nothing left to do. A script that does not catch it ends with its `exit_code`,
    without a traceback.

    To train further, raise `trainer.epochs` or `trainer.max_minutes`; to begin again, use `run
    --fresh` or another `run_name`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = self.exit_code


class MissingExtraError(TmrlLikeError):
    """An optional package is needed. The message is the `pip install` line.

    On a slim Linux OpenCV may be installed and still not load: `apt install libgl1` brings what it
    lacks.
    """

    exit_code = 2


class EncodingError(TmrlLikeError):
    """A value cannot cross the wire. The message names the field inside the sample.

    Arrays of numbers and bools, Python numbers, text, bytes, None, and tuples, lists and dicts of
    these can. Convert anything else in the environment, or drop it in the `sample_compressor`.
    """


class DecodingError(TmrlLikeError):
    """Bytes do not decode to the type they claim.

    The receiver refuses them, counts them and goes on. Look for two versions of tmrl_like, or for a
    program that is not tmrl_like and has a key.
    """


class OversizeError(DecodingError):
    """A length exceeds its limit. Nothing was allocated for it.

    For samples, lower `worker.outbox.max_samples` or drop in the compressor what the memory can
    rebuild. Raise `server.limits.max_message_bytes` only on all machines alike.
    """


class TransportError(TmrlLikeError):
    """The link between two parts failed.

    Check `server.host`, `server.bind`, `server.port` and `server.transport`. A server that is
    merely away raises nothing: workers and trainer wait for it, and say so in the log.
    """


class AddressInUseError(TransportError):
    """The server's port is taken: end the other server, or choose another `server.port` on all
    machines.
    """


class CredentialsError(TransportError):
    """No key, a wrong key, or a key that is not for this role.

    Invite the machine on the server's (`tmrl-like keys invite NAME`), and paste the line that is
    printed into `tmrl-like keys join -`. If an engine refuses, check `server.engine_credentials`
    and the rights of that user.
    """


class RefusedError(TmrlLikeError):
    """The server refused this peer; the message is the server's reason.

    It is raised only if waiting cannot help: the key is for another role or was revoked, the
    versions differ, the samples do not fit the trainer's memory, another process has taken this
    trainer's seat. A refusal that can pass (no free seat, a name in use) is a line in the log, and
    the peer tries again every 2 s.
    """


class NoWorkerError(TmrlLikeError):
    """Samples come from nowhere: the workers of the trainer's own script have failed, and no other
    drives.

    The message says what the worker's `run` raised.
    """


class PolicyError(TmrlLikeError):
    """Weights do not fit the actor that should use them, or are not fit to act.

    A worker keeps the policy that it has. If its own file at `model_path` is not fit, it does not
    start: remove the file, or give actor and environment the arguments that they had in training.
    """


class DamagedPolicyError(PolicyError):
    """A file of weights is not as it was written.

    A worker puts its own file aside, as `….damaged`, and waits for the trainer's policy. Of a
    policy store the version before is taken if none was named.
    """


class EnvironmentFaultError(TmrlLikeError):
    """The user's environment raised, hung, or returned a value that is not finite.

    The worker ends the episode as truncated and makes the environment again; after five faults in a
    row it raises. The message has file and line. Raise `worker.hang_timeout_s` if the environment
    is only slow.
    """


class EnvironmentAwayError(EnvironmentFaultError):
    """What the environment drives does not answer; a worker tries again for as long as it takes.

    Raise it in an interface of your own if the simulator, game or robot is not there.
    """


class MemoryContractError(TmrlLikeError):
    """A user's memory, compressor or preprocessor returned something of the wrong form.

    `tmrl_like.testing.memories` has a suite of tests for memories; `tmrl-like check` tries the
    whole pipeline.
    """


class PipelineMismatchError(MemoryContractError):
    """CRC debugging found a rebuilt transition that differs from the original.

    Compressor and memory do not match. The message names field, element and both values; `tmrl-like
    check` repeats it in seconds.
    """


class RankError(TmrlLikeError):
    """Of several trainers that learn as one, one is gone or silent, or its parameters differ.

    All of them end; the last checkpoint and all stored samples remain. Start them again, or have
    torchrun do so. If parameters differ, an agent of your own does not average everything that
    batches change.
    """


class DivergedError(TmrlLikeError):
    """Training has led to weights that are not finite. They are neither published nor written to a
    checkpoint.

    Lower the learning rates, or scale rewards and observations, and go on from the checkpoint.
    """


class ShortageError(TmrlLikeError):
    """The system gives this program no more threads, processes or memory.

    Raise the limit that the message names (`ulimit -u`, a container's `--pids-limit`), or lower
    `memory_size` or `batch_size`, or keep the memory on a disk (`scratch_dir`).
    """


class CheckpointError(TmrlLikeError):
    """A checkpoint, or a folder of samples, cannot be read or written, or belongs to another
    training.

    What was there is not changed. Make room, restore the settings that the message lists, move the
    folder away, or begin again with `run --fresh`. A checkpoint that cannot be written is a line in
    the log, and training goes on.
    """


def expect(makes_sense: bool, name: str, value: object, expected: str) -> None:
    """Raise ConfigError where an argument of the user's makes no sense; it says what was
    expected.
    """
    if not makes_sense:
        raise ConfigError(f"{name} is {value!r}; expected {expected}")
