"""Mutation testing: break the code one expression at a time, and list the mutants that no test
notices. Run it with `make mutants`.

mutmut makes the mutants; pyproject.toml, [tool.mutmut], names the modules and tests. A mutant that
mypy rejects counts as noticed, because `make test` runs mypy. For every other mutant the tests that
call its function are run, fastest first, until one fails. Test modules are imported once; each
mutant runs in a fork of that process (so not on Windows).

Results are in mutants/: `mutmut show NAME` shows a mutant, and mutants/survivors.diff all
survivors. Which functions a test calls is measured when its file is new or has changed; remove
mutants/ to measure all of them again.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORK = ROOT / "mutants"
KILLED = ("mypy", "killed", "timeout")
EXIT_CODES = {"killed": 1, "survived": 0, "no tests": 33, "timeout": 36, "mypy": 37}  # mutmut's
FAILED, HITS = 1, "hits.json"
SECONDS = 60.0  # of tests for each mutant, as measured on the original code
CHILDREN = os.cpu_count() or 1  # mutants at a time
OF_COPIES = ("has-type", "no-redef")  # mypy's errors because each function is defined many times


@dataclass
class Job:
    """Tests to run with one mutant in its own process."""

    name: str
    items: list[pytest.Item]
    limit_s: float
    folder: Path = Path()  # for files that its tests write
    started_at: float = 0.0


class Forks:
    """A pytest plugin that collects tests and runs jobs of them in forked processes."""

    def __init__(self, children, work):
        self.items = []
        self._children = children
        self._work = work
        self._failed = False

    def pytest_runtestloop(self, session):
        self.items = session.items
        self._work(self)
        return True

    def pytest_runtest_logreport(self, report):
        self._failed |= report.failed

    def run(self, jobs):
        """Run jobs, and yield how each ended: killed, survived or timeout."""
        waiting, running = iter(jobs), {}
        try:
            while True:
                while len(running) < self._children and (job := next(waiting, None)) is not None:
                    job.started_at, job.folder = (
                        time.monotonic(),
                        Path(tempfile.mkdtemp(prefix="mutant-")),
                    )
                    running[self._fork(job)] = job
                if not running:
                    return
                for pid, end in list(self._ended(running)):
                    job = running.pop(pid)
                    yield job, end
                    shutil.rmtree(job.folder, ignore_errors=True)
                time.sleep(0.01)
        finally:
            for pid, job in running.items():
                _kill(pid)
                shutil.rmtree(job.folder, ignore_errors=True)

    def _ended(self, running):
        for pid, job in running.items():
            ended, status = os.waitpid(pid, os.WNOHANG)
            is_late = not ended and time.monotonic() - job.started_at > job.limit_s
            if ended or is_late:
                _kill(pid)  # and the processes that its tests started
                if is_late:
                    os.waitpid(pid, 0)
                yield pid, "timeout" if is_late else "killed" if status else "survived"

    def _fork(self, job):
        if pid := os.fork():
            return pid
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.environ |= {"MUTANT_UNDER_TEST": job.name, "PYTEST_DEBUG_TEMPROOT": str(job.folder)}
        try:
            self._run_in_fork(job)
        finally:
            os._exit(FAILED)

    def _run_in_fork(self, job):
        from mutmut.state import state

        for item, following in zip(job.items, [*job.items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                os._exit(FAILED)
        hits = {"seconds": time.monotonic() - job.started_at, "functions": sorted(state()._stats)}
        (job.folder / HITS).write_text(json.dumps(hits))
        os._exit(0)


def _kill(pid):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        default=[""],
        help="words in the names of the mutants, e.g. relay (default: all)",
    )
    parser.add_argument(
        "--per-module",
        type=int,
        default=60,
        help="how many of each module, always the same ones; 0: all",
    )
    arguments = parser.parse_args()
    os.chdir(ROOT)
    paths = _generate(CHILDREN)
    refused = _refused_by_mypy(paths)
    chosen = {path: names for path in paths if (names := _choose(path, arguments))}
    os.environ["OMP_NUM_THREADS"] = "1"  # no threads before the fork, and reproducible numbers

    def work(forks):
        import torch._dynamo  # noqa: F401 - what the first optimiser imports otherwise, in each fork again

        tests = _measure(forks)
        os.chdir(ROOT)
        for path, names in chosen.items():
            _try(forks, path, names, refused, tests)
        _report(chosen)

    from mutmut.configuration import config

    selection = config().pytest_add_cli_args_test_selection
    os.chdir(WORK)
    options = [
        "--rootdir=.",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "--timeout=30",
        "--hypothesis-profile=ci",
    ]
    sys.exit(pytest.main([*options, *selection], plugins=[Forks(CHILDREN, work)]))


def _generate(children):
    """Copy tests and mutated sources to `WORK`; return the paths of the mutated sources."""
    from mutmut import __main__ as mutmut
    from mutmut.configuration import config
    from mutmut.utils import file_utils

    if missing := [path for path in config().only_mutate if not Path(path).is_file()]:
        sys.exit(f"pyproject.toml, [tool.mutmut] names {', '.join(missing)}: there is no such file")
    WORK.mkdir(exist_ok=True)
    for copy in WORK.rglob("*.py"):
        if not (ROOT / copy.relative_to(WORK)).exists():
            copy.unlink()
    for path in map(Path, config().only_mutate):
        if not _results(path).meta_path.exists():
            # copied before pyproject.toml listed it: mutmut would take it for mutated,
            (WORK / path).unlink(missing_ok=True)
            # and it is not measured which tests call its functions
            (WORK / "tests.json").unlink(missing_ok=True)
    os.environ["MUTANT_UNDER_TEST"] = "mutant_generation"
    with contextlib.redirect_stdout(None):
        file_utils.copy_src_dir()
        file_utils.copy_also_copy_files()
        file_utils.setup_source_paths()
        mutmut.create_mutants(children)
    os.environ["MUTANT_UNDER_TEST"] = ""
    return sorted(
        path for path in file_utils.walk_mutatable_files() if _results(path).exit_code_by_key
    )


def _results(path):
    from mutmut.mutation.data import SourceFileMutationData

    data = SourceFileMutationData(path=path)
    data.load()
    return data


def _module(path):
    return ".".join(path.with_suffix("").parts)


def _refused_by_mypy(paths):
    """Return the mutants in which mypy finds an error that the original does not have."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--output",
        "json",
        "--disable-error-code",
        "unused-ignore",
    ]
    output = subprocess.run(command, cwd=WORK, capture_output=True, text=True).stdout
    errors = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    refused = set()
    for path in paths:
        tree = ast.parse((WORK / path).read_text())
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and "__mutmut_" in node.name
        ]
        at_line = {
            line: f.name for f in functions for line in range(f.lineno, (f.end_lineno or 0) + 1)
        }
        found = [
            (at_line[error["line"]], error["message"])
            for error in errors
            if Path(error["file"]) == path
            and error["line"] in at_line
            and error["code"] not in OF_COPIES
        ]
        usual = {message for name, message in found if name.endswith("__mutmut_orig")}
        refused |= {f"{_module(path)}.{name}" for name, message in found if message not in usual}
    return refused


def _choose(path, arguments):
    results = _results(path).exit_code_by_key
    names = [name for name in results if any(word in name for word in arguments.names)]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    return names[: arguments.per_module or None]


def _measure(forks):
    """Measure which functions each test calls and how long it takes. Leave out tests that fail
    without a mutant.
    """
    cache = WORK / "tests.json"
    known = json.loads(cache.read_text()) if cache.exists() else {}
    changed_at = {item.nodeid: (ROOT / item.location[0]).stat().st_mtime for item in forks.items}
    unknown = [
        item
        for item in forks.items
        if known.get(item.nodeid, {}).get("changed_at") != changed_at[item.nodeid]
    ]
    print(f"measuring {len(unknown)} of {len(forks.items)} tests", flush=True)
    for job, end in forks.run(Job("stats", [item], 120.0) for item in unknown):
        nodeid = job.items[0].nodeid
        if end == "survived":
            hits = json.loads((job.folder / HITS).read_text())
            known[nodeid] = hits | {"changed_at": changed_at[nodeid]}
        else:
            known.pop(nodeid, None)
            print(f"without a mutant: {end}: {nodeid}", flush=True)
    cache.write_text(json.dumps(known))
    return {item: known[item.nodeid] for item in forks.items if item.nodeid in known}


def _try(forks, path, names, refused, tests):
    results = _results(path)
    jobs = []
    for name in names:
        calling = [
            item
            for item, hits in tests.items()
            if name.partition("__mutmut_")[0] in hits["functions"]
        ]
        calling.sort(key=lambda item: tests[item]["seconds"])
        total_s = 0.0
        chosen = [
            item for item in calling if (total_s := total_s + tests[item]["seconds"]) <= SECONDS
        ]
        if name in refused or not calling:
            results.exit_code_by_key[name] = EXIT_CODES["mypy" if name in refused else "no tests"]
        else:
            jobs.append(Job(name, chosen or calling[:1], 3 * SECONDS + 30.0))
    started = time.monotonic()
    os.chdir(WORK)
    for job, end in forks.run(jobs):
        results.exit_code_by_key[job.name] = EXIT_CODES[end]
        results.durations_by_key[job.name] = time.monotonic() - job.started_at
        if end == "survived":
            print(f"survived: {job.name}", flush=True)
    os.chdir(ROOT)
    results.save()
    print(
        f"{_module(path)}: {len(jobs)} mutants run in {time.monotonic() - started:.0f} s",
        flush=True,
    )


def _report(chosen):
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    ends = {code: end for end, code in EXIT_CODES.items()}
    columns = (*KILLED, "survived", "no tests")
    print("module".ljust(40), "mutants", "tried", *columns, "noticed", "by tests alone", sep="  ")
    diffs = []
    for path, names in chosen.items():
        results = _results(path).exit_code_by_key
        count = Counter(ends[results[name]] for name in names)
        missed = count["survived"] + count["no tests"]
        by_tests = 1 - missed / max(1, len(names) - count["mypy"])
        numbers = [str(count[end]).rjust(len(end)) for end in columns]
        shares = f"{1 - missed / max(1, len(names)):7.0%}", f"{by_tests:14.0%}"
        print(
            _module(path).ljust(40),
            f"{len(results):7}",
            f"{len(names):5}",
            *numbers,
            *shares,
            sep="  ",
        )
        survivors = sorted(name for name in names if ends[results[name]] not in KILLED)
        diffs += [f"# {name}\n{get_diff_for_mutant(name, path=path)}\n" for name in survivors]
    (WORK / "survivors.diff").write_text("\n".join(diffs))


if __name__ == "__main__":
    main()
