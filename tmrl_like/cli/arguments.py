"""What can be written behind `tmrl-like`."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
import re
import shlex
import subprocess
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import tmrl_like
from tmrl_like.base.gone import GONE
from tmrl_like.base.options import sentences
from tmrl_like.base.text import nearest, suggestion
from tmrl_like.config.components import type_name
from tmrl_like.config.document import shipped, split_overrides
from tmrl_like.config.loading import TOP_LEVEL
from tmrl_like.config.settings import PARTS, SECTIONS, Settings
from tmrl_like.errors import ConfigError
from tmrl_like.experiment import Experiment

Arguments = argparse.Namespace

WITHOUT_EXPERIMENT = ("log", "policies", "runs", "plot", "eval", "init", "keys")
LEVELS = ("debug", "info", "warning", "error")

_ABOUT = """\
Train robots, games and simulators in real time, over a network.

An experiment is one YAML file that every command reads:

  tmrl-like run my_arm.yaml                 everything on this machine
  tmrl-like server my_arm.yaml              or three terminals, or three machines
  tmrl-like trainer my_arm.yaml
  tmrl-like worker my_arm.yaml

`tmrl-like init my_arm --kind robot` writes one of your own, beside its environment. These ship, and are found by name:

  {shipped}

Any value of the file can be given on the command line: --trainer.epochs 3, --agent.lr_actor 1e-4.
"""

_EXITS = "exit codes: 0 done, 1 something failed, 2 a mistake in arguments or file, 130 stopped before the end"


def parse(argv: Sequence[str]) -> Arguments | int:
    """Take the command line apart; an exit code where help was asked for and given.

    Raises:
        ConfigError: what was asked for cannot be understood; one line.
    """
    overrides, others = split_overrides(argv, [key for key in TOP_LEVEL if key not in SECTIONS])
    try:
        arguments, unknown = _parser().parse_known_args(others)
    except SystemExit as finished:  # --help, --version
        return int(finished.code or 0)
    if unknown:  # the value of an unknown option is one more
        _refuse_unknown(next((word for word in unknown if word.startswith("-")), unknown[0]), arguments)
    if overrides and arguments.command in WITHOUT_EXPERIMENT and arguments.command != "eval":
        raise ConfigError(
            f"`{arguments.command}` reads no experiment: --{'.'.join(overrides[0][0])} has no meaning there"
        )
    if overrides and getattr(arguments, "experiment", "") is None:
        raise ConfigError(f"without an experiment --{'.'.join(overrides[0][0])} has no meaning")
    arguments.overrides = overrides
    return arguments


def as_typed(arguments: Arguments) -> list[str]:
    """The experiment as a command line names it: its file, and what was given in place of the file's values."""
    overrides = [f"--{'.'.join(map(str, keys))}={value}" for keys, value in arguments.overrides]
    return [arguments.experiment, *overrides]


def how_to_test(arguments: Arguments) -> str:
    """The command that drives the policy of the run that these arguments name."""
    command = ["tmrl-like", "test", *as_typed(arguments)]
    return shlex.join(command) if os.name == "posix" else subprocess.list2cmdline(command)


class _Parser(argparse.ArgumentParser):
    """argparse whose complaints are one line."""

    def __init__(self, **options: Any) -> None:
        formatter: Any = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=30, width=110)
        super().__init__(allow_abbrev=False, formatter_class=formatter, **options)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{_shorter(message)}; see {self.prog} --help")


def _parser() -> _Parser:
    parser = _Parser(prog="tmrl-like", description=_ABOUT.format(shipped=" ".join(shipped())), epilog=_EXITS)
    parser.add_argument("--version", action="version", version=f"tmrl_like {tmrl_like.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    _add_roles(commands)
    _add_tools(commands)
    _add_doctor(commands)
    _add_policies(commands)
    _add_runs(commands)
    _add_init(commands)
    _add_page(commands)
    _add_keys(commands)
    options = {}
    for name, command in commands.choices.items():
        command.add_argument("--log-level", choices=LEVELS, default="info", help="which log lines to show (info)")
        command.set_defaults(supervised=False, print_config=False)
        options[name] = [o for a in command._actions for o in a.option_strings if a.help != argparse.SUPPRESS]
    parser.set_defaults(options_of=options)
    return parser


def _command(commands: Any, name: str, about: str, more: str = "") -> argparse.ArgumentParser:
    reads_experiment = name not in WITHOUT_EXPERIMENT
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}. {more}".strip(),
        epilog=f"{_describe_keys()}\n\n{_EXITS}" if reads_experiment else _EXITS,
    )
    if reads_experiment:
        about = "a YAML file, or the name of one that ships"
        parser.add_argument("experiment", metavar="EXPERIMENT", help=about, nargs="?" if name == "doctor" else None)
        parser.add_argument(
            "--print_config", action="store_true", help="print the whole experiment, defaults included, and end"
        )
        parser.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
    return parser


def _add_number(
    parser: argparse.ArgumentParser,
    name: str,
    default: float,
    about: str,
    expected: str = "1 or more",
    fits: Callable[[float], bool] = lambda n: n >= 1,
) -> None:
    """An option whose value is a number of the default's type, in a range."""
    kind = _number_of(default, expected, fits)
    parser.add_argument(name, type=kind, default=default, metavar="N", help=f"{about} ({default:g})")


def _number_of(like: float, expected: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = type(like)(text)
        if not fits(value):
            raise argparse.ArgumentTypeError(f"{text} is not {expected}")
        return value

    return number


def _add_roles(commands: Any) -> None:
    run = _command(
        commands,
        "run",
        "server, trainer and workers on this machine, with live progress",
        "One Ctrl-C ends all of them. If one dies, the others are ended and its last words are shown.",
    )
    _add_number(run, "--workers", 1, "number of workers")
    _add_number(run, "--trainers", 1, "number of trainers, which learn as one")
    about = "everything in one thread, for a debugger and for equal results; the environment stands still meanwhile"
    run.add_argument("--in-process", action="store_true", help=about)
    run.add_argument("--fresh", action="store_true", help="start over; an earlier run of this name is kept aside")
    about = "show it in a browser, see `tmrl-like page`"
    run.add_argument("--page", action="store_true", help=about)
    about = "start over, and at the end compare the policy with an untrained one: exit code 0 only if it is better"
    run.add_argument("--proof", action="store_true", help=f"{about} (section proof)")
    _command(commands, "server", "the relay that workers and the trainer dial; needs neither torch nor a GPU")
    worker = _command(commands, "worker", "run the environment with the newest policy and send what happens")
    worker.add_argument("--name", help="unique among workers (made from host and process)")
    about = "drive this policy for good: a file, a version, a tag or RUN@TAG; what is published is ignored"
    worker.add_argument("--policy", metavar="POLICY", help=about)
    worker.add_argument("--expert", action="store_true", help="send samples, ignore weights, run no test episodes")
    trainer = _command(commands, "trainer", "train from what the workers send", "The key for wandb is WANDB_API_KEY.")
    about = "train from a data set, or from what the run has recorded, without server and workers"
    trainer.add_argument("--offline", action="store_true", help=about)


def _add_tools(commands: Any) -> None:
    newest: dict[str, Any] = {
        "metavar": "POLICY",
        "help": "what to drive with: a file, a version, a tag or RUN@TAG (the run's newest)",
    }
    about = "drive the stored policy, without server and trainer, and show how it does"
    test = _command(commands, "test", about)
    about = "draw the environment in a window while the stored policy drives it; Ctrl-C ends it"
    show = _command(commands, "show", about)
    for tool, episodes in ((test, 10), (show, math.inf)):
        _add_number(tool, "--episodes", episodes, "test episodes")
        policy = tool.add_mutually_exclusive_group()
        policy.add_argument("--policy", **newest)
        policy.add_argument("--untrained", action="store_true", help="drive an untrained policy, for comparison")
    test.add_argument("--video", metavar="FILE", help="write the first episode's pictures to an .mp4 file")
    test.add_argument("--show", action="store_true", help="draw the environment meanwhile, as `show` does")
    show.set_defaults(show=True, video=None)
    benchmark = _command(commands, "benchmark", "measure the environment's time-steps with the policy in the loop")
    _add_number(benchmark, "--steps", 400, "steps to measure")
    about = "check in one process that environment, compressor, wire and memory rebuild every transition exactly"
    check = _command(commands, "check", about, "A difference is shown with field, element and both values.")
    _add_number(check, "--episodes", 3, "episodes to run")
    about = "steps of random actions to measure delays from; 0: do not measure"
    _add_number(check, "--delay-steps", 400, about, "0 or more", lambda n: n >= 0)
    about = "how far these go from the default action, as a part of half their range"
    _add_number(check, "--excitation", 0.3, about, "above 0 and up to 1", lambda n: 0 < n <= 1)
    about = "write a data set that a run can start from (--memory.dataset_path), without server and trainer"
    record = _command(commands, "record", about)
    record.add_argument("--out", required=True, metavar="DIR", help="the folder that the data set goes to")
    _add_number(record, "--episodes", 10, "episodes to record")
    policy = record.add_mutually_exclusive_group()
    policy.add_argument("--policy", **newest)
    policy.add_argument("--random", action="store_true", help="draw actions from the action space")
    about = "the experiment's actor as it is, without weights; marked as demonstrations"
    policy.add_argument("--expert", action="store_true", help=about)
    about = "drive around the environment's track once, and write the way for its reward"
    reward = _command(commands, "record-reward", about)
    reward.add_argument("--output", required=True, metavar="FILE", help="where the way goes, an .npz file")
    drivers = ("script", "keyboard")
    about = "who drives; keyboard needs a display (script)"
    reward.add_argument("--driver", choices=drivers, default=drivers[0], help=about)
    about = "between two points, in the environment's unit"
    _add_number(reward, "--spacing", 1.0, about, "a length", lambda n: 0 < n < math.inf)
    about = "show the samples of a data set, or those that a trainer has kept"
    log = _command(commands, "log", about)
    log.add_argument("path", metavar="PATH", help="its folder, or one of its files")
    log.add_argument("--minari", metavar="DIR", help="write its whole episodes as a Minari data set instead")


def _add_runs(commands: Any) -> None:
    _command(commands, "runs", "what has been trained on this machine: task, minutes, return, state")
    more = (
        "PLACE is a run, by its name, its folder or the YAML file of its experiment.\n"
        "Runs of one experiment that differ in run_name, seed and server are one line in a band."
    )
    plot = _command(commands, "plot", "draw returns over time and over samples (the extra plot)", more)
    plot.add_argument("places", metavar="PLACE", nargs="+")
    plot.add_argument("--out", metavar="FILE", default="returns.png", help="where the picture goes (returns.png)")
    more = (
        "PLACE is a run, by its name, its folder or the YAML file of its experiment. Its newest policy is meant\n"
        "unless a version or a tag follows: drone@best. Keys of its experiment can be changed: --env.KEY VALUE."
    )
    about = "drive a run's policy, and show its returns' mean, spread and confidence interval"
    evaluate = _command(commands, "eval", about, more)
    evaluate.add_argument("place", metavar="PLACE")
    _add_number(evaluate, "--episodes", 100, "test episodes")


def _add_page(commands: Any) -> None:
    about = "show the run in a browser, and its figures to Prometheus"
    page = _command(commands, "page", about, "It looks with this machine's key, and changes nothing.")
    is_port = ("a port, or 0", lambda n: 0 <= n < 65536)
    about = "where a browser finds it; 0: a free one (7791, or a free one)"
    page.add_argument("--port", type=_number_of(0, *is_port), metavar="N", help=about)
    about = "local address to listen on; another one lets others look, without a key (127.0.0.1: this machine only)"
    page.add_argument("--bind", default="127.0.0.1", metavar="ADDRESS", help=about)


def _add_policies(commands: Any) -> None:
    more = (
        "PLACE is a run, by its name, its folder or the YAML file of its experiment. Its newest policy is meant\n"
        "unless a version or a tag follows: drone@1200, config/drone.yaml@best."
    )
    parser = _command(commands, "policies", "the policies that runs keep on this machine", more)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    about = "show what a run keeps, or all runs"
    shown = actions.add_parser("list", help=about)
    tag = actions.add_parser("tag", help="keep a policy for good, under a name of its own")
    export = actions.add_parser("export", help="write a policy to a file, which is all that another machine needs")
    prune = actions.add_parser("prune", help="remove versions without a tag")
    shown.add_argument("place", metavar="PLACE", nargs="?", help="without it, all runs are shown")
    for action in (tag, export, prune):
        action.add_argument("place", metavar="PLACE")
    tag.add_argument("tag", metavar="TAG", help="a letter, then letters, digits, '.', '_' and '-'")
    export.add_argument("file", metavar="FILE")
    about = "as ONNX instead, for machines without tmrl_like: from raw numbers to the best action"
    export.add_argument("--onnx", action="store_true", help=about)
    about = "with --onnx: a package of yours that the policy may name code of"
    export.add_argument("--allow", metavar="PACKAGE", action="append", default=[], help=about)
    _add_number(prune, "--keep", 1, "how many of the newest stay")
    prune.add_argument("--untag", metavar="TAG", action="append", default=[], help="remove a tag as well")


def _add_doctor(commands: Any) -> None:
    about = "look for what stands in an experiment's way on this machine; without one, at the machine alone"
    _command(commands, "doctor", about, "A line for each finding, with its cure; exit code 1 if one is a problem.")


def _add_init(commands: Any) -> None:
    more = (
        "The folder NAME then holds NAME.py, NAME.yaml and test_NAME.py, with a simulated device in the place of yours."
    )
    about = "write an environment, an experiment and a test of your own, which run as they are"
    init = _command(commands, "init", about, more)
    init.add_argument("name", metavar="NAME", help="of the folder, and of what is in it: my_arm")
    about = "robot: a device behind a driver, in real time; game: pictures, in real time; gym: a simulator that waits"
    init.add_argument("--kind", choices=("robot", "game", "gym"), required=True, help=about)


def _add_keys(commands: Any) -> None:
    more = (
        "Parts on one machine need none of this.\n\n"
        "  on the server's machine   tmrl-like keys invite robot1\n"
        "  on robot1                 tmrl-like keys join -        (then paste the line)"
    )
    parser = _command(commands, "keys", "who may connect to this machine's server", more)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    invite = actions.add_parser("invite", help="make a key for another machine; prints one line to paste there")
    invite.add_argument("name", metavar="NAME", help="what to call that machine")
    roles = ("worker", "trainer", "both", "watcher")
    about = "what it may be (worker); a watcher only looks"
    invite.add_argument("--role", choices=roles, default="worker", help=about)
    about = "- reads the line that `invite` printed from standard input; an argument would stay in the history"
    join = actions.add_parser("join", help="take over a key that `invite` made")
    join.add_argument("line", metavar="LINE", help=about)
    actions.add_parser("list", help="show the keys that may connect")
    revoke = actions.add_parser("revoke", help="refuse a key from now on; what it has open is closed")
    revoke.add_argument("name", metavar="NAME")
    for action in actions.choices.values():
        action.add_argument("--keys-dir", metavar="FOLDER", help="where the keys are")


@functools.cache
def _describe_keys() -> str:
    """All keys of an experiment, with type, default and meaning."""
    lines = ["keys of the experiment, each also an option:"]
    lines += _rows("", Settings, skip=tuple(SECTIONS))
    lines += [f"  --{name}.KEY VALUE\n        {sentences(Experiment)[name]}" for name in PARTS]
    for name, cls in SECTIONS.items():
        lines += _rows(f"{name}.", cls)
    return "\n".join(lines)


def _rows(prefix: str, page: Any, skip: tuple[str, ...] = ()) -> Iterator[str]:
    hints, meanings = typing.get_type_hints(page), sentences(page)
    for field in dataclasses.fields(page):
        if dataclasses.is_dataclass(hints[field.name]) and field.name not in skip:
            yield from _rows(f"{prefix}{field.name}.", hints[field.name])
        elif field.name not in skip:
            default = "none" if field.default is None else str(field.default).lower()
            kind = type_name(hints[field.name])
            yield f"  --{prefix}{field.name} ({kind}; {default})\n        {meanings[field.name]}"


def _refuse_unknown(argument: str, arguments: Arguments) -> NoReturn:
    if not argument.startswith("-"):
        raise ConfigError(f"{argument!r} is one argument too many; a value follows its --key")
    name = argument.partition("=")[0]
    known = [*arguments.options_of[arguments.command], *(f"--{key}" for key in TOP_LEVEL if key not in SECTIONS)]
    others = [f"`{command}`" for command, options in arguments.options_of.items() if name in options]
    if name in GONE or name[2:] in GONE:
        hint = suggestion(name if name in GONE else name[2:], ())
    elif nearest(name, known) and not others:
        hint = suggestion(name, known)
    else:
        hint = f"{', '.join(others)} has it" if others else f"see tmrl-like {arguments.command} --help"
    raise ConfigError(f"there is no option {name}; {hint}")


def _shorter(message: str) -> str:
    """Argparse's sentence about a wrong choice, with the nearest one."""
    wrong = re.fullmatch(r"argument (.+): invalid choice: '(.*)' \(choose from (.*)\)", message)
    if wrong is None:
        return message
    choices = [c.strip(" '") for c in wrong[3].split(",")]
    return f"{wrong[1]}: there is no {wrong[2]!r}; {suggestion(wrong[2], choices)}"
