"""What can be written behind `tmrl-like`."""

from __future__ import annotations

import argparse
import dataclasses
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import tmrl_like
from tmrl_like.base.options import sentences
from tmrl_like.base.text import nearest, suggestion
from tmrl_like.config.components import type_name
from tmrl_like.config.document import split_overrides
from tmrl_like.config.experiment import PARTS, SECTIONS, Experiment, Settings
from tmrl_like.config.loading import TOP_LEVEL
from tmrl_like.errors import ConfigError

Arguments = argparse.Namespace

LEVELS = ("debug", "info", "warning", "error")

_ABOUT = """\
Train robots, games and simulators in real time, over a network.

An experiment is one YAML file that every command reads:

  tmrl-like run config/drone.yaml                 everything on this machine
  tmrl-like server config/drone.yaml              or three terminals, or three machines
  tmrl-like trainer config/drone.yaml
  tmrl-like worker config/drone.yaml

Any value of the file can be given on the command line: --trainer.epochs 3, --agent.lr_actor 1e-4.
"""

_EXITS = "exit codes: 0 done, 1 something failed, 2 a mistake in arguments or file, 130 stopped before the end"


def parse(argv: Sequence[str]) -> Arguments | int:
    """Take the command line apart.

    Returns:
        The arguments, or an exit code where help was asked for and given.

    Raises:
        ConfigError: what was asked for cannot be understood; one line.
    """
    overrides, others = split_overrides(argv, [key for key in TOP_LEVEL if key not in SECTIONS])
    try:
        arguments, unknown = _parser().parse_known_args(others)
    except SystemExit as finished:  # --help, --version
        return int(finished.code or 0)
    if unknown:
        _refuse_unknown(unknown[0], arguments)
    if overrides and arguments.command in ("keys", "log"):
        raise ConfigError(
            f"`{arguments.command}` reads no experiment: --{'.'.join(overrides[0][0])} has no meaning there"
        )
    arguments.overrides = overrides
    return arguments


class _Parser(argparse.ArgumentParser):
    """argparse whose complaints are one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **options)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{_shorter(message)}; see {self.prog} --help")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)


def _parser() -> _Parser:
    parser = _Parser(prog="tmrl-like", description=_ABOUT, epilog=_EXITS)
    parser.add_argument("--version", action="version", version=f"tmrl_like {tmrl_like.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for add in (
        _add_run,
        _add_server,
        _add_worker,
        _add_trainer,
        _add_test,
        _add_benchmark,
        _add_check,
        _add_record,
        _add_record_reward,
        _add_log,
        _add_keys,
    ):
        add(commands)
    for command in commands.choices.values():
        _add_log_level(command)
        options = [o for a in command._actions for o in a.option_strings if a.help != argparse.SUPPRESS]
        command.set_defaults(known_options=options, supervised=False, print_config=False)
    return parser


def _command(commands: Any, name: str, about: str, more: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}. {more}".strip(),
        epilog=f"{_describe_keys()}\n\n{_EXITS}",
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="the experiment, a YAML file")
    parser.add_argument(
        "--print_config", action="store_true", help="print the whole experiment, defaults included, and end"
    )
    parser.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
    return parser


def _add_log_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="which log lines to show (info)")


def _add_run(commands: Any) -> None:
    parser = _command(
        commands,
        "run",
        "server, trainer and workers on this machine, with live progress",
        "One Ctrl-C ends all of them. If one dies, the others are ended and its last words are shown.",
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="train for N minutes (trainer.max_minutes)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="number of workers (1)")
    parser.add_argument("--fresh", action="store_true", help="start over; an earlier run of this name is kept aside")
    parser.add_argument(
        "--proof",
        action="store_true",
        help="start over, and compare the trained policy with an untrained one at the end (section proof): "
        "exit code 0 only if it is better",
    )


def _add_server(commands: Any) -> None:
    _command(commands, "server", "the relay that workers and the trainer dial; needs neither torch nor a GPU")


def _add_worker(commands: Any) -> None:
    parser = _command(commands, "worker", "run the environment with the newest policy and send what happens")
    parser.add_argument("--name", help="unique among workers (made from host and process)")
    parser.add_argument("--expert", action="store_true", help="send samples, ignore weights, run no test episodes")


def _add_trainer(commands: Any) -> None:
    parser = _command(commands, "trainer", "train from what the workers send")
    parser.add_argument("--tensorboard", action="store_true", help="as trainer.tensorboard: true")
    parser.add_argument("--wandb", action="store_true", help="as trainer.wandb: true; the key is WANDB_API_KEY")
    parser.add_argument("--wandb-entity", metavar="NAME", help="as trainer.wandb_entity")
    parser.add_argument("--wandb-project", metavar="NAME", help="as trainer.wandb_project")
    parser.add_argument("--wandb-run-id", metavar="ID", help="as trainer.wandb_run_id")
    parser.add_argument("--wandb-offline", action="store_true", help="as trainer.wandb_offline: true")


def _add_test(commands: Any) -> None:
    parser = _command(commands, "test", "drive the stored policy, without server and trainer, and show how it does")
    parser.add_argument("--episodes", type=_count, default=10, metavar="N", help="test episodes (10)")
    policy = parser.add_mutually_exclusive_group()
    policy.add_argument("--policy", metavar="FILE", help="weights to drive with (the run's newest)")
    policy.add_argument("--untrained", action="store_true", help="drive an untrained policy, for comparison")
    parser.add_argument("--video", metavar="FILE", help="write the first episode's pictures to an .mp4 file")


def _add_benchmark(commands: Any) -> None:
    parser = _command(commands, "benchmark", "measure the environment's time-steps with the policy in the loop")
    parser.add_argument("--steps", type=_count, default=400, metavar="N", help="steps to measure (400)")


def _add_check(commands: Any) -> None:
    parser = _command(
        commands,
        "check",
        "check in one process that environment, compressor, wire and memory rebuild every transition exactly",
        "A difference is shown with field, element and both values.",
    )
    parser.add_argument("--episodes", type=_count, default=3, metavar="N", help="episodes to run (3)")
    parser.add_argument(
        "--delay-steps",
        type=_count_from_0,
        default=400,
        metavar="N",
        help="steps of random actions to measure delays from (400); 0: do not measure",
    )
    parser.add_argument(
        "--excitation",
        type=_share,
        default=0.3,
        metavar="SHARE",
        help="how far these go from the default action, as a part of half their range (0.3)",
    )


def _add_record(commands: Any) -> None:
    parser = _command(
        commands, "record", "write a data set that a run can start from (dataset_path), without server and trainer"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder that the data set goes to")
    parser.add_argument("--episodes", type=_count, default=10, metavar="N", help="episodes to record (10)")
    policy = parser.add_mutually_exclusive_group()
    policy.add_argument("--policy", metavar="FILE", help="weights to drive with (the run's newest)")
    policy.add_argument("--random", action="store_true", help="draw actions from the action space")
    policy.add_argument(
        "--expert",
        action="store_true",
        help="the experiment's actor as it is, without weights; marked as demonstrations",
    )


def _add_record_reward(commands: Any) -> None:
    parser = _command(
        commands, "record-reward", "drive around the environment's track once, and write the way for its reward"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="where the way goes, an .npz file")
    parser.add_argument(
        "--driver",
        choices=("script", "keyboard"),
        default="script",
        help="who drives; keyboard needs a display (script)",
    )
    parser.add_argument(
        "--spacing", type=_length, default=1.0, metavar="N", help="between two points, in the environment's unit (1)"
    )


def _add_log(commands: Any) -> None:
    about = "show what is in a packet log: a data set, or what a trainer or a worker has kept"
    parser = commands.add_parser("log", help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=_EXITS)
    parser.add_argument("path", metavar="PATH", help="its folder, or one of its files")
    parser.add_argument("--minari", metavar="DIR", help="write its whole episodes as a Minari data set instead")


def _add_keys(commands: Any) -> None:
    about = "who may connect to this machine's server"
    parser = commands.add_parser(
        "keys",
        help=about,
        description="Who may connect to this machine's server. Parts on one machine need none of this.\n\n"
        "  on the server's machine   tmrl-like keys invite robot1\n"
        "  on robot1                 tmrl-like keys join -        (then paste the line)",
        epilog=_EXITS,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    invite = actions.add_parser("invite", help="make a key for another machine; prints one line to paste there")
    invite.add_argument("name", metavar="NAME", help="what to call that machine")
    invite.add_argument("--role", choices=("worker", "trainer", "both"), default="worker", help="(worker)")
    join = actions.add_parser("join", help="take over a key that `invite` made")
    join.add_argument(
        "line",
        metavar="LINE",
        help="- reads the line that `invite` printed from standard input; an argument would stay in the history",
    )
    actions.add_parser("list", help="show the keys that may connect")
    revoke = actions.add_parser("revoke", help="refuse a key from now on; what it has open is closed")
    revoke.add_argument("name", metavar="NAME")
    for action in actions.choices.values():
        action.add_argument("--keys-dir", "--keys_dir", metavar="FOLDER", help="where the keys are")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def _length(text: str) -> float:
    number = float(text)
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a length")
    return number


def _count_from_0(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _share(text: str) -> float:
    number = float(text)
    if not 0.0 < number <= 1.0:
        raise argparse.ArgumentTypeError(f"{number} is not above 0 and up to 1")
    return number


# -- help --------------------------------------------------------------------------------------------


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
    known = [*arguments.known_options, *(f"--{key}" for key in TOP_LEVEL if key not in SECTIONS)]
    near = nearest(name, known)
    hint = f"did you mean {near}?" if near else f"see tmrl-like {arguments.command} --help"
    raise ConfigError(f"there is no option {name}; {hint}")


def _shorter(message: str) -> str:
    """Argparse's sentence about a wrong choice, with the nearest one."""
    wrong = re.fullmatch(r"argument (.+): invalid choice: '(.*)' \(choose from (.*)\)", message)
    if wrong is None:
        return message
    choices = [c.strip(" '") for c in wrong[3].split(",")]
    return f"{wrong[1]}: there is no {wrong[2]!r}; {suggestion(wrong[2], choices)}"
