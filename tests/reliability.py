"""The tables of docs/reliability.md: faults that tests inject, what is promised, and what was
measured.

    python tests/reliability.py        prints them; docs/_extensions/reference.py uses them

A test states the fault that it injects and what holds nevertheless::

    @pytest.mark.fault("disk", "the trainer's disk is full", "training goes on; nothing acknowledged
    is lost")

The measurement is the line that the test gave to the fixture `figure` in the last run with
`--keep-figures`, kept in tests/figures.json. tests/peer_faults.json says what tmrl 0.7.1 does,
where that was tried.
"""

import ast
import json
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
FIGURES, PEER = TESTS / "figures.json", TESTS / "peer_faults.json"
AREAS = {
    "processes": "Processes that are killed or stand still",
    "network": "Links that break, freeze and damage",
    "disk": "Disks that are full, slow or damaged, and power cuts",
    "peers": "Peers that are broken or hostile",
    "resources": "Machines that run out of something",
    "clocks": "Clocks that are wrong",
    "robots": "Environments and policies",
    "people": "People",
}
COMMANDS = {
    "mark.long": "make test-long",
    "mark.chaos": "make chaos",
    "mark.learn": "make learn",
    "short=0": "make chaos",
}


class Proof(NamedTuple):
    """A test that injects a fault."""

    area: str
    fault: str
    promise: str
    test: str  # FILE::NAME
    command: str


def proofs():
    """Yield the proofs of all marked tests, in order of file and line."""
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.fault(" not in text:
            continue
        module = ast.parse(text)
        lines = map(ast.unparse, module.body)
        of_all = [line for line in lines if line.startswith("pytestmark")]
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef):
                marks = "\n".join([*of_all, *map(ast.unparse, node.decorator_list)])
                command = next(
                    (command for mark, command in COMMANDS.items() if mark in marks), "make test"
                )
                for mark in node.decorator_list:
                    if ast.unparse(mark).startswith("pytest.mark.fault("):
                        said = [ast.literal_eval(argument) for argument in mark.args]
                        yield Proof(
                            *said, f"{path.relative_to(TESTS).as_posix()}::{node.name}", command
                        )


def table(area):
    """Return an area's table in Markdown, with a row for each fault."""
    figures, peer = (json.loads(path.read_text(encoding="utf-8")) for path in (FIGURES, PEER))
    rows = {}
    for proof in proofs():
        if proof.area == area:
            rows.setdefault(proof.fault, []).append(proof)
    lines = ["| fault | promise | measured | tmrl 0.7.1 | test |", "|---|---|---|---|---|"]
    for fault, its in rows.items():
        promises = "; ".join(dict.fromkeys(proof.promise for proof in its))
        measured = "<br>".join(
            f"{name.removesuffix('-full')}: {line}" if name else line
            for proof in its
            for name, line in figures.get(proof.test, {}).items()
        )
        measured = measured or f"holds in each `{its[0].command}`"
        tests = "<br>".join(f"`{proof.test}`" for proof in its)
        lines.append(f"| {fault} | {promises} | {measured} | {peer.get(fault, '')} | {tests} |")
    return "\n".join(lines)


if __name__ == "__main__":
    found = list(proofs())
    print(f"{len({(proof.area, proof.fault) for proof in found})} faults, {len(found)} tests")
    for area, title in AREAS.items():
        print(f"\n## {title}\n\n{table(area)}")
