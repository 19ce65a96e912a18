"""All exceptions that tmrl_like raises on purpose.

    TmrlLikeError
    ├── ConfigError              a file, key or argument given by the user is wrong
    │   └── FinishedError        the run has completed its epochs or its minutes
    ├── MissingExtraError        a required optional package is not installed
    ├── EncodingError            a sample holds a value that cannot be sent
    ├── DecodingError            bytes are not what they claim to be
    │   └── OversizeError        a length is above its limit; nothing was allocated
    ├── TransportError           the network link failed
    │   ├── AddressInUseError    the server's port is taken
    │   └── CredentialsError     there is no key, a wrong key, or a key for another role
    ├── RefusedError             the server refused this peer
    ├── NoWorkerError            this script's own workers have failed, and there are no others
    ├── PolicyError              weights do not fit this actor, or are not fit to act
    │   └── DamagedPolicyError   a weight file has changed since it was written
    ├── EnvironmentFaultError    the user's environment failed
    │   └── EnvironmentAwayError   the simulator, game or robot that it drives does not answer
    ├── MemoryContractError      a user's memory, compressor or preprocessor broke its contract
    │   └── PipelineMismatchError   CRC debugging: a rebuilt transition differs from the original
    ├── RankError                a trainer of a group is gone or silent, or parameters differ
    ├── DivergedError            training has produced weights that are not finite
    ├── ShortageError            the system has no more threads, processes or memory to give
    └── CheckpointError          a checkpoint cannot be read or written

Each message says what was expected, what was found and what to do next. Exceptions of other
packages are converted to these in one place per subsystem (transport, configuration, checkpoint).
"""

import os


class TmrlLikeError(Exception):
    """Base class of all errors that tmrl_like raises on purpose; bugs raise other exceptions.

    The command line prints the message as one line and exits with `exit_code`.
    """

    exit_code = 1


class ConfigError(TmrlLikeError):
    """A file, key or argument given by the user is wrong.

    The message names the file, the line, the key, and the closest valid name. Correct the mistake
    and start again. If you introduce a mistake into an experiment's file while it trains, training
    continues with the old values.
    """

    exit_code = 2


class FinishedError(ConfigError, SystemExit):
    """The run has nothing left to do.

    A script that does not catch this error exits with its `exit_code`, without a traceback. To
    train further, raise `trainer.epochs` or `trainer.max_minutes`; to begin again, use `run
    --fresh` or another `run_name`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun starts again what ends with another code
            self.exit_code = 0
        self.code = self.exit_code


class MissingExtraError(TmrlLikeError):
    """A required optional package is not installed. The message gives the `pip install` command.

    On a minimal Linux system OpenCV may be installed but fail to load: `apt install libgl1`
    provides the library that it needs.
    """

    exit_code = 2


class EncodingError(TmrlLikeError):
    """A value cannot be sent. The message names its field in the sample.

    Arrays of numbers and bools, Python numbers, text, bytes, None, and tuples, lists and dicts of
    these can be sent. Convert anything else in the environment, or drop it in the
    `sample_compressor`.
    """


class DecodingError(TmrlLikeError):
    """Bytes do not decode to the type that they claim to be.

    The receiver refuses and counts them, and continues. Possible causes are two versions of
    tmrl_like, or another program that uses one of your keys.
    """


class OversizeError(DecodingError):
    """A length exceeds its limit. Nothing was allocated for it.

    For samples, lower `worker.outbox.max_samples`, or drop in the compressor what the memory can
    rebuild. If you raise `server.limits.max_message_bytes`, raise it on all machines.
    """


class TransportError(TmrlLikeError):
    """The network link between two parts failed.

    Check `server.host`, `server.bind`, `server.port` and `server.transport`. An unreachable server
    does not raise this error: workers and the trainer log a warning and wait for it.
    """


class AddressInUseError(TransportError):
    """The server's port is taken.

    Stop the other server, or choose another `server.port` on all machines.
    """


class CredentialsError(TransportError):
    """There is no key, the key is wrong, or it is not valid for this role.

    Run `tmrl-like keys invite NAME` on the server's machine, and paste the line that it prints into
    `tmrl-like keys join -` on this one. If an engine refuses the connection, check
    `server.engine_credentials` and the rights of that user.
    """


class RefusedError(TmrlLikeError):
    """The server refused this peer; the message is the server's reason.

    This error is raised only if waiting cannot help: the key is for another role or was revoked,
    the versions differ, the samples do not fit the trainer's memory, or another process has taken
    this trainer's seat. A temporary refusal (no free seat, a name in use) is only logged, and the
    peer tries again every 2 s.
    """


class NoWorkerError(TmrlLikeError):
    """No samples can arrive: the workers in the trainer's own script have failed, and no other
    worker drives.

    The message says what the worker's `run` raised.
    """


class PolicyError(TmrlLikeError):
    """Weights do not fit the actor that should use them, or are not fit to act.

    A worker that receives such weights keeps its current policy. A worker whose own file at
    `model_path` is unusable does not start: remove the file, or give the actor and the environment
    the arguments that they had in training.
    """


class DamagedPolicyError(PolicyError):
    """A weight file has changed since it was written.

    A worker renames its own file to `….damaged` and waits for the trainer's policy. A policy store
    falls back to the previous version unless you asked for a specific one.
    """


class EnvironmentFaultError(TmrlLikeError):
    """The user's environment raised, hung, or returned a value that is not finite.

    The worker truncates the episode and makes the environment again; after five faults in a row it
    raises this error. The message names the file and the line. If the environment is only slow,
    raise `worker.hang_timeout_s`.
    """


class EnvironmentAwayError(EnvironmentFaultError):
    """The simulator, game or robot that the environment drives does not answer.

    A worker keeps trying for as long as it takes. Raise this error in your own interface if the
    simulator, game or robot is not there.
    """


class MemoryContractError(TmrlLikeError):
    """A user's memory, compressor or preprocessor returned a value of the wrong form.

    `tmrl_like.testing.memories` has a test suite for memories; `tmrl-like check` tries the whole
    pipeline.
    """


class PipelineMismatchError(MemoryContractError):
    """CRC debugging found a rebuilt transition that differs from the original.

    The compressor and the memory do not match. The message names the field, the element and both
    values; `tmrl-like check` reproduces the error within seconds.
    """


class RankError(TmrlLikeError):
    """One of several trainers that learn as one is gone or silent, or its parameters differ.

    All trainers of the group end; the last checkpoint and all stored samples remain. Start them
    again, or let torchrun do so. If parameters differ, your own agent does not average everything
    that its batches change.
    """


class DivergedError(TmrlLikeError):
    """Training has produced weights that are not finite.

    They are neither published nor written to a checkpoint. Lower the learning rates, or scale
    rewards and observations, and resume from the last checkpoint.
    """


class ShortageError(TmrlLikeError):
    """The system has no more threads, processes or memory for this program.

    Raise the limit that the message names (`ulimit -u`, a container's `--pids-limit`), or lower
    `memory_size` or `batch_size`.
    """


class CheckpointError(TmrlLikeError):
    """A checkpoint or a sample folder cannot be read or written, or belongs to another training.

    Existing files are not changed. Make room, restore the settings that the message lists, move the
    folder away, or begin again with `run --fresh`. If a checkpoint cannot be written during
    training, this is only logged, and training continues.
    """


def expect(makes_sense: bool, name: str, value: object, expected: str) -> None:
    """Raise ConfigError unless an argument makes sense; the message says what was expected."""
    if not makes_sense:
        raise ConfigError(f"{name} is {value!r}; expected {expected}")


def unexpected(name: str, returned: object, expected: str) -> ConfigError:
    """Return the error for a method of the user's that returned something else."""
    shown = " ".join(repr(returned).split())
    return ConfigError(f"{name} returned {shown:.80}; expected {expected}")
