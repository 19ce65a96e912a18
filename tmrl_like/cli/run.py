"""`tmrl-like run`: server, trainer and workers on this machine, which end together."""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import sys
from collections.abc import Callable
from typing import TextIO

import msgspec

from tmrl_like.cli import proof
from tmrl_like.cli.arguments import Arguments, as_typed, how_to_test
from tmrl_like.cli.stopping import CHECKPOINT_WITHIN_S, Stopper
from tmrl_like.cli.supervise import ERROR_PREFIX, Child, Family
from tmrl_like.config.run_lock import use_run
from tmrl_like.config.settings import is_loopback
from tmrl_like.errors import ConfigError, TmrlLikeError
from tmrl_like.types import EpisodeStats

_TURN_S = 0.1
_ENDS_WITHIN_S = 6.0
_TESTED = ("untrained test", "trained test")
_CHECK = "check of the code"


class PartDiedError(TmrlLikeError):
    """A part ended by itself, and all others were ended too."""

    def __init__(self, child: Child) -> None:
        is_mistake = child.exit_code == ConfigError.exit_code
        super().__init__(child.cause() if is_mistake else f"the {child.role} died: {child.cause()}")
        self.exit_code = ConfigError.exit_code if is_mistake else TmrlLikeError.exit_code


def main(arguments: Arguments) -> int:
    """Run all parts until training is over."""
    settings = arguments.experiment
    starts_over = arguments.fresh or arguments.proof
    if arguments.in_process and (arguments.workers != 1 or starts_over or arguments.page):
        raise ConfigError(
            "--in-process goes with none of --workers, --proof, --fresh and --page: worker.envs is "
            "the number of environments, --trainer.resume none starts over"
        )
    if not starts_over:
        settings.refuse_finished()
    title = f"run {settings.run_name} ({settings.document.source})"
    if arguments.in_process:
        print(f"{title} starts: torch is loaded first")
        from tmrl_like.cli import train

        return train.main(arguments)
    if starts_over and settings.paths.folder.is_symlink():  # what is locked is where it leads
        raise ConfigError(
            f"{settings.paths.folder} is a link, behind which no run starts over: remove it, or "
            "choose another run_name"
        )
    stopper = Stopper(
        arguments.supervised, CHECKPOINT_WITHIN_S + 2 * _ENDS_WITHIN_S, on_stop=lambda: None
    )
    with use_run(settings.paths, "run", alone=starts_over) as let_others:
        show(title)
        with Family() as family:
            return Run(arguments, family, stopper, let_others).run()


def show(text: str) -> None:
    """Print a line, unless its reader has gone (`| tee` ends with Ctrl-C) or its disk is full: the
    run goes on.
    """
    try:
        print(text)
    except BrokenPipeError:
        sys.stdout = None  # print now does nothing
    except OSError:
        pass


class Run:
    """One run of an experiment, from its first process to its last."""

    def __init__(
        self,
        arguments: Arguments,
        family: Family,
        stopper: Stopper,
        let_others: Callable[[], None],
    ) -> None:
        self._arguments = arguments
        self._settings = arguments.experiment
        self._family = family
        self._stopper = stopper
        self._let_others = let_others
        self._early_lines = io.StringIO()  # until the run has a folder
        self._log: TextIO = self._early_lines
        self._port = 0
        self._place = str(arguments.place)  # of the experiment, for the parts

    def run(self) -> int:
        """Start all parts, watch and end them, and run the proof if one was asked for."""
        try:
            self._start_server()
            self._prepare_folder()
            self._train()
            self._end_all()
            code = self._prove() if self._arguments.proof else 0
            self._say_where()
            return code
        except BaseException as failure:
            self._end_all()
            if self._parts("worker"):
                self._say_where()
            self._report_trainer_too(failure)
            raise
        finally:
            with contextlib.suppress(OSError):
                self._log.close()

    # -- the parts, one after another

    def _start_server(self) -> None:
        """Start the server first, so that a port that is taken leaves everything else untouched."""
        server = self._start(
            "server", "server", f"--server.bind={self._settings.server.listens_on}"
        )
        self._wait_until_ready(server)
        self._port = int(server.said[0].split()[1])

    def _prepare_folder(self) -> None:
        """Prepare the run's folder. With --fresh it is empty, and the earlier one is renamed, but
        only if the experiment's code can be imported.
        """
        folder = self._settings.paths.folder
        if folder.exists() and (self._arguments.fresh or self._arguments.proof):
            # imports the code of all parts
            self._wait_until_ended(self._start(_CHECK, "config"))
            now = datetime.datetime.now()
            aside = folder.with_name(f"{folder.name}-until-{now:%Y%m%d-%H%M%S}")
            try:
                folder.rename(aside)
            except OSError as error:  # Windows, where another program has a file in it open
                raise ConfigError(f"{folder} cannot be renamed: {error}") from None
            self._say(f"the earlier run of this name is now {aside}")
            run = self._arguments.found.run
            if run is not None and not run.exists():  # the experiment was saved in it
                self._place = str(aside)
        elif self._settings.paths.checkpoint.exists() and self._settings.trainer.resume == "all":
            self._say(f"going on with the run in {folder}; --fresh starts over")
        folder.mkdir(parents=True, exist_ok=True)
        self._let_others()
        self._log = self._settings.paths.log.open("a", encoding="utf-8", buffering=1)
        self._write(self._early_lines.getvalue())

    def _train(self) -> None:
        """Start trainer, page and workers, and watch them until training is over."""
        trainer = self._start("trainer", "trainer", *self._where())
        self._wait_until_ready(trainer)
        if self._arguments.page:
            self._start("page", "page", *self._where())
        number = self._arguments.workers
        if number == 1:
            self._start("worker", "worker", *self._where())
        else:
            for i in range(1, number + 1):
                self._start(f"worker {i}", "worker", "--name", f"worker-{i}", *self._where())
        self._say("waiting for the first samples")
        self._wait_until_ended(trainer)

    def _end_all(self) -> None:
        self._say("ending")
        trainers = self._parts("trainer")  # none yet, or one
        self._family.ask_to_end(*trainers)
        self._family.stop(*self._parts("page", "worker", *_TESTED), within_s=_ENDS_WITHIN_S)
        is_broken = any(child.exit_code for child in trainers)
        self._family.stop(*trainers, within_s=_ENDS_WITHIN_S if is_broken else CHECKPOINT_WITHIN_S)
        # last, so that the others can disconnect properly
        self._family.stop(*self._parts("server"), within_s=_ENDS_WITHIN_S)
        self._hear_last_words()

    def _report_trainer_too(self, failure: BaseException) -> None:
        """Report the trainer's own error beside what has ended the run: it may have failed to write
        its last checkpoint. Raises PartDiedError if the run was only told to stop.
        """
        for trainer in self._parts("trainer"):
            if trainer.error and trainer.error not in str(failure):
                if isinstance(failure, KeyboardInterrupt):
                    raise PartDiedError(trainer) from None
                self._say(f"the trainer, too: {trainer.error}")

    def _prove(self) -> int:
        """Test the trained policy and an untrained one, compare them, and show the verdict."""
        paths = self._settings.paths
        before = self._test(_TESTED[0], "--untrained")
        after = self._test(_TESTED[1], "--policy", str(paths.trainer_model))
        if proof.prove(before, after, self._settings.proof, paths.folder):
            return 0
        return TmrlLikeError.exit_code

    def _test(self, role: str, *policy: str) -> list[EpisodeStats]:
        """Run a test of a policy and return its episodes. Tests run one after another, because two
        games cannot share a screen.
        """
        asked = self._settings.proof.episodes
        child = self._start(role, "test", "--episodes", str(asked), *policy)
        shown = -1
        while child.exit_code is None:
            done = len(_episodes_of(child))
            if done > shown:
                self._say(f"proof: {done} of {asked} {role}s")
                shown = done
            self._turn()
        self._hear_last_words()
        episodes = _episodes_of(child)
        if len(episodes) < asked:
            raise PartDiedError(child)
        return episodes

    # -- starting and watching

    def _start(self, role: str, command: str, *more: str) -> Child:
        overrides = [*as_typed(self._arguments)[1:], f"--run_name={self._settings.run_name}"]
        level = self._arguments.log_level
        return self._family.start(
            role, [command, self._place, *overrides, *more, "--log-level", level]
        )

    def _where(self) -> list[str]:
        """Return options that lead parts to the server. The trainer saves them, so they also say
        whether the server is there for other machines, for a start by the run's name.
        """
        bind = self._settings.server.listens_on
        host = "127.0.0.1" if bind in ("0.0.0.0", "::", "*") else bind
        if bind == "::" and os.name == "nt":  # where that means IPv6 alone with tlspyo
            host = "::1"  # elsewhere it may be missing, as in some containers
        is_for_others = [] if is_loopback(bind) else [f"--server.bind={bind}"]
        return [f"--server.host={host}", f"--server.port={self._port}", *is_for_others]

    def _parts(self, *roles: str) -> list[Child]:
        """Return the processes with one of these roles."""
        return [child for child in self._family.children if child.role.startswith(roles)]

    def _wait_until_ready(self, child: Child) -> None:
        """Wait until a part has started, so that parts started later do not compete with it for the
        processor.
        """
        self._say(f"waiting for the {child.role}")
        while not child.said:
            self._turn()

    def _wait_until_ended(self, child: Child) -> None:
        """Watch all parts until this one has ended."""
        while child.exit_code is None:
            self._turn()
        self._turn()

    def _turn(self) -> None:
        """Do one round of watching all parts. Raises PartDiedError if a part has ended before it
        was done, KeyboardInterrupt after Ctrl-C or SIGTERM.
        """
        self._hear(_TURN_S)
        if self._stopper.requested:
            raise KeyboardInterrupt
        if dead := [child for child in self._family.children if self._has_died(child)]:
            self._hear_last_words()
            raise PartDiedError(dead[0])

    def _has_died(self, child: Child) -> bool:
        if child.role == "page" or child.is_asked or child.exit_code is None:
            return False
        return child.exit_code != 0 or not child.role.startswith(("trainer", _CHECK, *_TESTED))

    # -- what is said

    def _hear(self, wait_s: float = 0.0) -> None:
        """Log and show the lines that parts have printed; waits for the first one."""
        for text in self._family.lines(wait_s):
            self._write(f"{text}\n")
            if not text.startswith(ERROR_PREFIX):
                show(text)

    def _hear_last_words(self) -> None:
        self._family.wait_for_last_words()
        self._hear()

    def _say(self, text: str) -> None:
        self._write(f"{text}\n")
        show(text)

    def _write(self, lines: str) -> None:
        """Add lines to run.log. A full disk costs log lines, and nothing else."""
        with contextlib.suppress(OSError):
            self._log.write(lines)

    def _say_where(self) -> None:
        self._say(
            f"everything of this run is in {self._settings.paths.folder}; try: "
            f"{how_to_test(self._arguments)}"
        )


def _episodes_of(child: Child) -> list[EpisodeStats]:
    """Return the reports of a test's episodes so far."""
    return [
        msgspec.json.decode(line.removeprefix("episode "), type=EpisodeStats)
        for line in child.said
        if line.startswith("episode ")
    ]
