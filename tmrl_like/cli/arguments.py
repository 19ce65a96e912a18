"""The arguments and options of `tmrl-like`."""

from __future__ import annotations

import argparse
import functools
import os
import re
import shlex
import subprocess
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias

from msgspec import Meta

import tmrl_like
from tmrl_like.base.gone import GONE
from tmrl_like.base.options import AboveZero, Natural, Port, Positive, in_range
from tmrl_like.base.text import nearest, suggestion
from tmrl_like.config.document import dotted, shipped, split_overrides
from tmrl_like.config.loading import TOP_LEVEL, Overrides
from tmrl_like.config.settings import SECTIONS
from tmrl_like.errors import ConfigError, expect

if TYPE_CHECKING:
    from tmrl_like.cli.places import Place
    from tmrl_like.experiment import Experiment

LEVELS = ("debug", "info", "warning", "error")

_KEYS = tuple(key for key in TOP_LEVEL if key not in SECTIONS)
_TAKE_VERSIONS = ("worker", "test", "record", "policies tag", "policies export")
_WITHOUT_POLICY = ("untrained", "random", "expert", "lap")  # options that drive without a policy

_ABOUT = """\
Train robots, games and simulators in real time, over a network.

An experiment is one YAML file that every command reads:

  tmrl-like run my_arm.yaml                 everything on this machine
  tmrl-like server my_arm.yaml              or three terminals, or three machines
  tmrl-like trainer my_arm.yaml
  tmrl-like worker my_arm.yaml

`tmrl-like init my_arm --kind robot` writes one of your own and its environment. These ship with the
package and are found by name:

  {shipped}

EXPERIMENT and RUN are one of these in all commands:

  my_arm.yaml      a file
  my_arm           my_arm.yaml in the working folder, an experiment that ships, or a run
  my_arm@best      a run, with one of its policies: a version (1200), a tag (best), or newest

Any value of the file can be given on the command line: --trainer.epochs 3, --agent.lr_actor 1e-4.
"""
_VALUES = (
    "Each key of the experiment is also an option: --trainer.epochs 3. `tmrl-like config "
    "EXPERIMENT` prints them all."
)
_EXITS = (
    "exit codes: 0 done, 1 something failed, 2 a mistake in arguments or file, 130 stopped before "
    "the end"
)


class Arguments(argparse.Namespace):
    """The parsed command line.

    Attributes:
        command: the command.
        log_level: which log lines to show.
        reads: whether the command reads an experiment.
        place: the first argument as it was typed; None if it is optional and was left out.
        overrides: keys and values (as text) that replace the experiment's.
        supervised: id of the `tmrl-like run` that started this process; 0: none did.
    """

    command: str
    log_level: str
    reads = False
    place: str | None = None
    overrides: Overrides = ()
    supervised = 0

    @functools.cached_property
    def found(self) -> Place:
        """What `place` names; see `find`."""
        assert self.place is not None
        return self.find(self.place)

    def find(self, typed: str) -> Place:
        """Return the file, experiment or run that a text names.

        Raises:
            ConfigError: there is none, or it has a version, which the command does not take.
        """
        from tmrl_like.cli.places import find_place

        found, given = find_place(typed), vars(self)
        options = [f"--{option}" for option in _WITHOUT_POLICY if given.get(option)]
        command = " ".join([self.command, *filter(None, [given.get("action")]), *options])
        if found.version and command not in _TAKE_VERSIONS:
            raise ConfigError(f"{typed}: `{command}` takes no version of a policy; leave out the @")
        return found

    @functools.cached_property
    def experiment(self) -> Experiment:
        """The experiment that `place` names, without its code; read once.

        Raises:
            ConfigError: it cannot be read, or a key or value is wrong; one line with file and line.
                Or a run would not go on in the folder that `place` names.
        """
        from tmrl_like.experiment import experiment_of

        made = experiment_of(self.found.open(self.overrides))
        run, folder = self.found.run, made.paths.folder
        goes_on = self.command in ("run", "trainer") and not vars(self).get("encoder")
        goes_on = goes_on and ("run_name",) not in dict(self.overrides)
        if run is not None and goes_on and run.resolve() != folder.resolve():
            raise ConfigError(
                f"{self.place} is not {folder}, where the run {made.run_name} is trained: move the "
                "folder there, or start another run: --run_name NAME"
            )
        return made


def parse(argv: Sequence[str]) -> Arguments | int:
    """Parse the command line. Returns an exit code instead if it asked for help and got it.

    Raises:
        ConfigError: the command line cannot be understood; one line.
    """
    overrides, others = split_overrides(argv, _KEYS)
    parser, commands = parsers()
    try:
        arguments, unknown = parser.parse_known_args(others, Arguments())
    except SystemExit as finished:  # --help, --version
        return int(finished.code or 0)
    if unknown:  # the value of an unknown option appears here too
        typed = next((word for word in unknown if word.startswith("-")), unknown[0])
        _refuse_unknown(typed, commands[arguments.command])
    if overrides:
        name = dotted(overrides[0][0])
        if not arguments.reads:
            raise ConfigError(
                f"`{arguments.command}` reads no experiment: --{name} has no meaning there"
            )
        if arguments.place is None:
            raise ConfigError(f"without an experiment --{name} has no meaning")
    arguments.overrides = overrides
    return arguments


def as_typed(arguments: Arguments) -> list[str]:
    """Return the experiment as on a command line: its place, then the options that replace the
    file's values.
    """
    overrides = [f"--{dotted(keys)}={value}" for keys, value in arguments.overrides]
    return [str(arguments.place), *overrides]


def to_type(*words: object) -> str:
    """Return words as they are typed in a shell, in quotes where necessary."""
    texts = list(map(str, words))
    return shlex.join(texts) if os.name == "posix" else subprocess.list2cmdline(texts)


def how_to_test(arguments: Arguments, *more: object) -> str:
    """Return the command that tests the policy of the run that these arguments name."""
    return to_type("tmrl-like", "test", *as_typed(arguments), *more)


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose error messages are one line."""

    def __init__(self, **options: Any) -> None:
        formatter: Any = functools.partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=30, width=110
        )
        super().__init__(allow_abbrev=False, formatter_class=formatter, **options)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{_shorter(message)}; see {self.prog} --help")

    def flag(self, name: str, about: str) -> None:
        """Add an option without a value."""
        self.add_argument(name, action="store_true", help=about)

    def file(self, name: str, about: str, suffix: str = ".safetensors", **options: Any) -> None:
        """Add an argument whose value is the name of a file to write, which must not exist."""

        def read(text: str) -> Path:
            expect(text.endswith(suffix), name, text, f"a name that ends in {suffix}")
            expect(not os.path.exists(text), name, text, "the name of a new file")
            return _path(text)

        self.add_argument(name, type=read, metavar="FILE", help=about, **options)

    def number(self, name: str, default: float | None, about: str, kind: Any = Positive) -> None:
        """Add an option whose value is a number in the range of the annotation `kind`."""
        number = typing.get_args(kind)[0]

        def read(text: str) -> float:
            value: float = in_range(name, number(text), kind)
            return value

        read.__name__ = number.__name__  # named in argparse's error messages
        shown = "" if default is None else f" ({default:g})"
        self.add_argument(name, type=read, default=default, metavar="N", help=f"{about}{shown}")


def _path(text: str) -> Path:
    """Return a path that stays the same one if the user's code changes the working folder."""
    return Path(text).absolute()


_NewCommand: TypeAlias = Callable[..., _Parser]


def parsers() -> tuple[_Parser, dict[str, _Parser]]:
    """Return the parser of the whole command line, and those of the commands by name."""
    parser = _Parser(
        prog="tmrl-like", description=_ABOUT.format(shipped=" ".join(shipped())), epilog=_EXITS
    )
    parser.add_argument("--version", action="version", version=f"tmrl_like {tmrl_like.__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    every = _Parser(add_help=False)
    every.add_argument(
        "--log-level", choices=LEVELS, default="info", help="which log lines to show (info)"
    )

    def command(
        name: str, about: str, more: str = "", *, reads: bool = True, place: str | None = None
    ) -> _Parser:
        described = f"{about[0].upper()}{about[1:]}. {more}".strip()
        epilog = f"{_VALUES}\n\n{_EXITS}" if reads else _EXITS
        made: _Parser = commands.add_parser(
            name, help=about, description=described, epilog=epilog, parents=[every]
        )
        if reads:
            about = "a YAML file, the name of an experiment, or a run"
            made.add_argument("place", metavar="EXPERIMENT", help=about, nargs=place)
            made.add_argument("--supervised", type=int, default=0, help=argparse.SUPPRESS)
            made.set_defaults(reads=True)
        return made

    _add_roles(command)
    _add_trials(command)
    _add_data(command)
    _add_success(command)
    _add_runs(command)
    _add_policies(command)
    _add_signal(command)
    _add_page(command)
    _add_machine(command)
    return parser, commands.choices


def _add_roles(command: _NewCommand) -> None:
    run = command(
        "run",
        "server, trainer and workers on this machine",
        "One Ctrl-C ends all of them. If one dies, the others are ended and its last words are "
        "shown.",
    )
    run.number("--workers", 1, "number of workers")
    run.flag(
        "--in-process",
        "everything in one process, for a debugger and for reproducible results; the environment "
        "pauses while the policy trains",
    )
    run.flag("--fresh", "start over; an earlier run of this name is kept aside")
    run.flag("--page", "show the run in a browser, see `tmrl-like page`")
    run.flag(
        "--proof",
        "start over, and at the end compare the policy with an untrained one: exit code 0 only if "
        "it is better (section proof)",
    )
    command(
        "server", "the relay that workers and trainer connect to; needs neither torch nor a GPU"
    )
    worker = command("worker", "run the environment with the newest policy and send the samples")
    worker.add_argument("--name", help="a name, unique among workers (made from host and process)")
    _add_policy(worker, "always drive with this policy, whatever is published")
    worker.flag("--expert", "send samples, ignore weights, run no test episodes")
    trainer = command(
        "trainer", "train from what the workers send", "The key for wandb is WANDB_API_KEY."
    )
    trainer.flag(
        "--offline",
        "train from a data set, or from what the run has recorded, without server and workers",
    )
    trainer.file(
        "--encoder",
        "train the encoder of pictures alone, on a data set (--memory.dataset_path), and write it "
        "to this new file",
    )


def _add_policy(parser: Any, about: str) -> None:
    parser.add_argument(
        "--policy",
        type=lambda text: str(_path(text)) if os.path.isfile(text) else text,
        metavar="POLICY",
        help=f"{about}: a file, a version, a tag or RUN@TAG",
    )


def _add_trials(command: _NewCommand) -> None:
    command("config", "print the whole experiment, defaults included")
    command(
        "doctor",
        "find problems that an experiment has on this machine; without one, check the machine "
        "alone",
        "A line for each finding, with its cure; exit code 1 if one is a problem.",
        place="?",
    )
    check = command(
        "check",
        "check in one process that environment, compressor, wire and memory rebuild every "
        "transition exactly",
        "A difference is shown with field, element and both values.",
    )
    check.number("--episodes", 3, "episodes to run")
    check.number(
        "--delay-steps",
        400,
        "steps with random actions from which delays are measured; 0: do not measure",
        Natural,
    )
    check.number(
        "--excitation",
        0.3,
        "how far random actions go from the default one, as a share of half the action range",
        Annotated[float, Meta(gt=0, le=1)],
    )
    check.number(
        "--timing", None, "only measure how long this many steps take, with the policy in the loop"
    )
    test = command("test", "run test episodes with the stored policy, without server and trainer")
    test.number(
        "--episodes",
        None,
        "test episodes (10; with --interval 100; with --window until it is closed)",
    )
    test.flag(
        "--interval",
        "show a confidence interval of the mean return, and the lowest, median and highest return",
    )
    test.flag("--window", "show the environment in a window")
    test.add_argument(
        "--video",
        type=_path,
        metavar="FILE",
        help="write the first episode's pictures to an .mp4 file",
    )
    policy = test.add_mutually_exclusive_group()
    _add_policy(policy, "the policy to drive with")
    policy.add_argument(
        "--untrained", action="store_true", help="drive an untrained policy, for comparison"
    )


def _add_data(command: _NewCommand) -> None:
    record = command(
        "record",
        "record a data set that a run can start from (--memory.dataset_path), or a lap, without "
        "server and trainer",
    )
    record.add_argument(
        "--out",
        required=True,
        type=_path,
        metavar="PATH",
        help="folder of the data set, or .npz file of the lap",
    )
    record.number("--episodes", 10, "episodes to record")
    policy = record.add_mutually_exclusive_group()
    _add_policy(policy, "the policy to drive with")
    policy.add_argument("--random", action="store_true", help="draw actions from the action space")
    policy.add_argument(
        "--expert",
        action="store_true",
        help="drive with the experiment's actor, without weights; samples are demonstrations",
    )
    policy.add_argument(
        "--lap",
        choices=("script", "keyboard"),
        help="drive once around the environment's track instead, and record the path for its "
        "reward; the value names the driver",
    )
    record.number(
        "--spacing",
        1.0,
        "distance between two points of a lap, in the environment's unit",
        AboveZero,
    )
    clone = command(
        "clone",
        "train the actor alone to imitate a data set, and write a policy that a run can start from",
        "If there are demonstrations in it, only they are imitated.",
    )
    clone.add_argument(
        "data",
        type=_path,
        metavar="DATA",
        help="a data set from `record` or a trainer, or from Minari",
    )
    clone.file("--out", "new file for the policy, .safetensors", required=True)
    clone.number("--steps", 2000, "training steps")
    clone.number(
        "--held-out",
        0.1,
        "share of the episodes kept out of training, to show how well it has learnt",
        Annotated[float, Meta(gt=0, lt=1)],
    )


def _add_success(command: _NewCommand) -> None:
    data = (
        "a data set from `record` or a trainer, or from Minari, with pictures (uint8) in its "
        "observations"
    )
    label = command(
        "label",
        "label which episodes of a data set succeeded, from the last pictures of its camera",
        "\nA window shows the last pictures of each episode that has no label yet: press s for "
        "success, f for failure,\nspace to skip, q to quit. Labels are kept as text beside the "
        "data set, in DATA.labels.csv.",
        reads=False,
    )
    label.add_argument("data", metavar="DATA", help=data)
    label.number("--last", 3, "pictures to show")
    given = label.add_mutually_exclusive_group()
    given.add_argument(
        "--file",
        metavar="FILE",
        help="take the labels from a text file: `episode,success`, then `0,true`",
    )
    given.add_argument(
        "--terminated",
        action="store_true",
        help="an episode succeeded if it ended in a terminal state",
    )
    model = command(
        "success-model",
        "learn from labelled episodes what success looks like, for a SuccessEnv, and show its "
        "errors",
        reads=False,
    )
    model.add_argument("data", metavar="DATA", help=f"{data}, labelled by `label`")
    model.file("--out", "new file for the model, .safetensors", required=True)
    model.number("--steps", 1000, "training steps")
    model.number(
        "--held-out",
        0.25,
        "share of the episodes of either label kept out of training, to show its error rates",
        Annotated[float, Meta(gt=0, lt=1)],
    )
    model.number(
        "--last",
        3,
        "pictures at the end of a success that show it; as many before them are ignored",
    )
    model.number("--frames", 3, "consecutive pictures that must show success, as in the SuccessEnv")


def _add_runs(command: _NewCommand) -> None:
    runs = command(
        "runs",
        "list the runs on this machine: task, minutes, return, state",
        reads=False,
    )
    runs.add_argument(
        "places", metavar="RUN", nargs="*", help="a run, or its experiment (all runs)"
    )
    runs.flag("--plot", "plot returns over time and over samples (needs the extra plot)")
    runs.add_argument(
        "--out", metavar="FILE", help="file for the picture, instead of returns.png; plots as well"
    )


def _add_policies(command: _NewCommand) -> None:
    policies = command(
        "policies",
        "list, tag or export the policies that runs keep on this machine",
        reads=False,
    )
    actions = policies.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=_Parser
    )
    shown = actions.add_parser("list", help="list the policies of a run, or of all runs")
    tag = actions.add_parser("tag", help="keep a policy permanently, under a name")
    export = actions.add_parser(
        "export", help="write a policy to one file, which is all that another machine needs"
    )
    for action in (shown, tag, export):
        action.add_argument("place", metavar="RUN", nargs="?" if action is shown else None)
    tag.add_argument("tag", metavar="TAG", help="a letter, then letters, digits, '.', '_' and '-'")
    export.file("file", "a new file, .safetensors or .onnx", suffix="")
    export.add_argument(
        "--onnx",
        action="store_true",
        help="write ONNX instead, for machines without tmrl_like: raw numbers in, best action out",
    )
    export.add_argument(
        "--allow",
        metavar="PACKAGE",
        action="append",
        default=[],
        help="with --onnx: a package of yours that the policy may import code from",
    )


def _add_signal(command: _NewCommand) -> None:
    signal = command(
        "signal",
        "tell a run's workers on this machine how an episode went, in place of a key "
        "(worker.person)",
        reads=False,
    )
    signal.add_argument("place", metavar="RUN", help="a run, or its experiment")
    signal.add_argument(
        "said", metavar="WHAT", help="success, failure, reset-done, or a number: a reward"
    )


def _add_page(command: _NewCommand) -> None:
    page = command(
        "page",
        "show the run in a browser, and provide its metrics for Prometheus",
        "It connects with this machine's key, and changes nothing.",
    )
    page.number(
        "--port",
        None,
        "port of the page; 0: a free one (7791, or a free one if that is taken)",
        Port,
    )
    page.add_argument(
        "--bind",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="local address to listen on; any other lets other machines look, without a key "
        "(127.0.0.1: this machine only)",
    )


def _add_machine(command: _NewCommand) -> None:
    init = command(
        "init",
        "write an environment, an experiment and a test of your own, ready to run",
        "The folder NAME then holds NAME.py, NAME.yaml and test_NAME.py, with a simulated device "
        "in place of yours.",
        reads=False,
    )
    init.add_argument(
        "name", metavar="NAME", help="name of the folder and of the files in it: my_arm"
    )
    init.add_argument(
        "--kind",
        choices=("robot", "game", "gym"),
        required=True,
        help="robot: a device behind a driver, in real time; game: pictures, in real time; gym: a "
        "simulator that waits",
    )
    keys = command(
        "keys",
        "manage who may connect to this machine's server",
        "Parts on one machine need none of this.\n\n"
        "  on the server's machine   tmrl-like keys invite robot1\n"
        "  on robot1                 tmrl-like keys join -        (then paste the line)",
        reads=False,
    )
    folder = _Parser(add_help=False)
    folder.add_argument("--keys-dir", metavar="FOLDER", help="where the keys are")
    actions = keys.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=_Parser
    )
    invite = actions.add_parser(
        "invite",
        help="make a key for another machine; prints one line to paste there",
        parents=[folder],
    )
    invite.add_argument("name", metavar="NAME", help="a name for that machine")
    roles = ("worker", "trainer", "both", "watcher")
    invite.add_argument(
        "--role",
        choices=roles,
        default="worker",
        help="what that machine may do (worker); a watcher only looks",
    )
    join = actions.add_parser("join", help="use a key that `invite` made", parents=[folder])
    join.add_argument(
        "line",
        metavar="LINE",
        help="the line that `invite` printed; - reads it from standard input, an argument would "
        "stay in the shell's history",
    )
    actions.add_parser("list", help="show the keys that may connect", parents=[folder])
    revoke = actions.add_parser(
        "revoke", help="refuse a key from now on; parts that use it end", parents=[folder]
    )
    revoke.add_argument("name", metavar="NAME")


def _refuse_unknown(argument: str, parser: _Parser) -> NoReturn:
    if not argument.startswith("-"):
        raise ConfigError(f"{argument!r} is one argument too many; a value follows its --key")
    name = argument.partition("=")[0]
    options = [
        option
        for option, action in parser._option_string_actions.items()
        if action.help != argparse.SUPPRESS
    ]
    known = [*options, *(f"--{key}" for key in _KEYS)]
    word = next((word for word in (name, name.removeprefix("--")) if word in GONE), name)
    is_known = word in GONE or nearest(word, known)
    hint = suggestion(word, known) if is_known else f"see {parser.prog} --help"
    raise ConfigError(f"there is no option {name}; {hint}")


def _shorter(message: str) -> str:
    """Shorten argparse's message about a wrong choice, and suggest the nearest one."""
    wrong = re.fullmatch(r"argument (.+): invalid choice: '(.*)' \(choose from (.*)\)", message)
    if wrong is None:
        return message
    choices = [c.strip(" '") for c in wrong[3].split(",")]
    return f"{wrong[1]}: there is no {wrong[2]!r}; {suggestion(wrong[2], choices)}"
