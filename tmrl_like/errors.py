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
    ├── PolicyError              weights that do not fit this actor
    ├── EnvironmentFaultError    the user's environment raised
    │   └── EnvironmentAwayError   the simulator, game or robot that it drives is not there
    ├── MemoryContractError      a user's memory, compressor or preprocessor broke its contract
    │   └── PipelineMismatchError   CRC debugging: a rebuilt transition differs from the original
    ├── RankError                several trainers: one is gone or silent, or their parameters differ
    ├── ShortageError            the system gives no more threads, processes or memory
    ├── DivergedError            training has led to weights that are not finite
    └── CheckpointError          a checkpoint that cannot be read or written

A message says what was expected, what was found and what to do next. Foreign exceptions are mapped
to these at one border each (transport, configuration, checkpoint) and nowhere else.
"""


class TmrlLikeError(Exception):
    """Base class. The command line prints its message as one line and exits with `exit_code`."""

    exit_code = 1


class ConfigError(TmrlLikeError):
    """A file, key or argument given by the user is wrong."""

    exit_code = 2


class FinishedError(ConfigError, SystemExit):
    """A run has nothing left to do. A script that does not catch it ends with its `exit_code`, without a traceback."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = self.exit_code


class MissingExtraError(TmrlLikeError):
    """An optional package is needed; the message names the extra to install."""

    exit_code = 2


class EncodingError(TmrlLikeError):
    """A value cannot cross the wire. The message names the field inside the sample."""


class DecodingError(TmrlLikeError):
    """Bytes do not decode to the type they claim."""


class OversizeError(DecodingError):
    """A length exceeds its limit. Nothing was allocated for it."""


class TransportError(TmrlLikeError):
    """The link between two parts failed."""


class AddressInUseError(TransportError):
    """The server's port is taken."""


class CredentialsError(TransportError):
    """No key, a wrong key, or a key that is not for this role."""


class RefusedError(TmrlLikeError):
    """The server refused this peer; the message is the server's reason."""


class NoWorkerError(TmrlLikeError):
    """Samples come from nowhere: the workers of the trainer's own script have failed, and no other drives."""


class PolicyError(TmrlLikeError):
    """Weights do not fit the actor that should use them."""


class DamagedPolicyError(PolicyError):
    """A file of weights is not as it was written."""


class EnvironmentFaultError(TmrlLikeError):
    """The user's environment raised."""


class EnvironmentAwayError(EnvironmentFaultError):
    """What the environment drives does not answer; a worker tries again for as long as it takes."""


class MemoryContractError(TmrlLikeError):
    """A user's memory, compressor or preprocessor returned something of the wrong form."""


class PipelineMismatchError(MemoryContractError):
    """CRC debugging found a rebuilt transition that differs from the original."""


class RankError(TmrlLikeError):
    """Of several trainers that learn as one, one is gone or silent, or its parameters differ."""


class DivergedError(TmrlLikeError):
    """Training has led to weights that are not finite. They are neither published nor written to a checkpoint."""


class ShortageError(TmrlLikeError):
    """The system gives this program no more threads, processes or memory."""


class CheckpointError(TmrlLikeError):
    """A checkpoint cannot be read or written."""


def expect(makes_sense: bool, name: str, value: object, expected: str) -> None:
    """Raise ConfigError where an argument of the user's makes no sense; it says what was expected."""
    if not makes_sense:
        raise ConfigError(f"{name} is {value!r}; expected {expected}")
