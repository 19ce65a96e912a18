"""The rules of docs/architecture.md as tests: which module may import which, and what an import may
do.
"""

import ast
import collections
import graphlib
import json
import re
from pathlib import Path

import pytest
from kit.pythons import python

from tmrl_like.config.paths import keys_folder
from tmrl_like.transport import KeyFolder

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tmrl_like"
GROUND = "types errors base"
LINKED = f"{GROUND} config wire transport session delivery"
MAY_IMPORT = {  # all rooms, from the ground floor up; these imports are allowed, and no others
    "errors": "",
    "base": "errors",
    "types": "errors base",
    "delivery.options": "base",
    "engine.options": "errors base",
    "server.options": "base",
    "trainer.options": "errors base",
    "worker.action_chain": GROUND,
    "worker.options": f"{GROUND} delivery.options rollouts transport worker.action_chain",
    "config": "errors base transport engine.options server.options trainer.options worker.options",
    "config.config_objects": "errors config experiment",  # a path that users import
    "wire": GROUND,
    "metrics": "errors base wire",
    "rollouts": GROUND,
    "transport": "errors base",
    "session": "errors base wire transport",
    "delivery": f"{GROUND} wire",
    "engine": f"{GROUND} wire transport",
    "envs": "errors base",
    "policies": f"{GROUND} wire",
    "agents": f"{GROUND} policies",
    "replay": f"{GROUND} wire delivery",
    "server": "errors base config wire transport engine engine.options",
    "worker": f"{LINKED} delivery.options envs policies rollouts worker.action_chain",
    "trainer": f"{LINKED} metrics policies agents replay engine engine.options",
    "page": "errors base types metrics wire transport session delivery",
    "in_process": f"{GROUND} wire policies trainer worker",
    "experiment": "errors base config policies in_process server worker trainer trainer.options",
}
EVERY_ROOM = {"cli", "testing"}  # these may import all rooms
DOORS = {  # public import paths: each leads to a room, and no room uses them
    "actor": "policies",
    "memory_dataloading": "replay",
    "networking": "base engine server worker trainer",
    "nn": "agents",
    "training": "agents",
    "training_offline": "trainer",
    "util": "base",
}
ALL_ROOMS = EVERY_ROOM | MAY_IMPORT.keys() | DOORS.keys()

ENVIRONMENTS = {folder.parent.name for folder in (PACKAGE / "envs").glob("*/__init__.py")}
BUILT_ON = {"trackmania": "desktop"}


def _modules():
    for file in sorted(
        file for file in PACKAGE.rglob("*.py") if file.parts[len(PACKAGE.parts)] != "templates"
    ):
        name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        yield name.removesuffix(".__init__"), file


def _imports(file):
    """Return the names, within the package, of what a file imports of it, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name.removeprefix("tmrl_like.") for name in found if name.startswith("tmrl_like.")]


def _rooms_imported(file):
    return set(map(_room_of, _imports(file)))


def _room_of(module):
    """Return a module's room. A module of options is its own room, below that of its owner."""
    first_two = ".".join(module.split(".")[:2])
    return first_two if first_two in MAY_IMPORT else module.split(".")[0]


def test_every_room_is_listed():
    rooms = {name.partition(".")[0] for name, _ in _modules()} - {"__init__", "__main__"}
    assert rooms == {room for room in ALL_ROOMS if "." not in room}


def test_a_room_imports_what_its_list_names_and_nothing_else():
    imported = collections.defaultdict(set)
    for name, file in _modules():
        imported[_room_of(name)] |= _rooms_imported(file) & ALL_ROOMS
    for room, listed in MAY_IMPORT.items():
        own = {room, f"{room}.options"} - set(listed.split())
        assert imported[room] - own == set(listed.split()), room
    for room in EVERY_ROOM:
        assert imported[room] <= {*MAY_IMPORT, room}


def test_a_door_re_exports_and_does_nothing_else():
    for door, rooms in DOORS.items():
        file = PACKAGE / f"{door}.py"
        assert {room.partition(".")[0] for room in _rooms_imported(file)} == set(rooms.split())
        kinds = {type(node) for node in ast.parse(file.read_text(encoding="utf-8")).body}
        assert ast.ClassDef not in kinds
        assert door == "networking" or kinds <= {ast.Expr, ast.ImportFrom, ast.Assign}


def test_no_files_import_each_other_in_a_circle():
    graphlib.TopologicalSorter(_imports_within("")).prepare()


def _imports_within(begin):
    """Return, for each module whose name begins so, those of them that it imports."""
    files = {name: file for name, file in _modules() if f"{name}.".startswith(begin)}
    return {
        name: {_longest_in(files, imported.split(".")) for imported in _imports(file)} - {name, ""}
        for name, file in files.items()
    }


def _longest_in(files, parts):
    """Return the name of the module that an import loads, or "" if it is not among the files."""
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in files), "")


def test_an_environment_knows_the_machinery_and_the_machinery_no_environment():
    for name, imported in _imports_within("envs.").items():
        own = name.split(".")[1] if "." in name else ""
        strange = ENVIRONMENTS - {own, BUILT_ON.get(own)}
        others = {module for module in imported if module.split(".")[1] in strange}
        assert not others, f"{name} imports {others}"


SERVE = """
import os, signal, threading, time
from tmrl_like.cli import main

def stop_when_it_listens():
    while "tmrl-server" not in [t.name for t in threading.enumerate()]:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=stop_when_it_listens, daemon=True).start()
assert main(["server", "config/drone.yaml", "--server.port", "0"]) == 130
"""


DRIVE = """
from tmrl_like.cli.arguments import parse
from tmrl_like.cli.prepare import TO_COLLECT, prepare

arguments = parse(["worker", "config/drone.yaml", "--server.port", "1"])
with prepare(arguments, TO_COLLECT).make_worker() as worker:
    worker.collect_train_episode(max_samples=1)
"""
HEAVY = "torch numpy gymnasium rtgym cv2 wandb matplotlib asyncio"  # and slow to import
SMALL = "tlspyo nats nkeys safetensors zstandard psutil"
ENGINE = "tmrl_like.engine.gateway tmrl_like.engine.reader"


@pytest.mark.parametrize(
    ("way", "absent"),
    [
        ("import tmrl_like", f"{HEAVY} {SMALL} {ENGINE} zmq cryptography msgspec filelock yaml"),
        (
            "from tmrl_like.cli import main; main(['--help'])",
            f"{HEAVY} {SMALL} {ENGINE} zmq cryptography filelock",
        ),
        (SERVE, f"{HEAVY} {SMALL} {ENGINE} filelock"),
        ("from tmrl_like.cli.run import main", f"{HEAVY} {SMALL} {ENGINE} zmq cryptography"),
        ("import tmrl_like.cli.train", f"cv2 wandb tlspyo rtgym matplotlib nats nkeys {ENGINE}"),
        (DRIVE, "torch cv2 wandb tlspyo twisted matplotlib asyncio"),
        ("import tmrl_like.policies.weight_file", "torch gymnasium"),
        # it first sets the number of threads
        ("import tmrl_like.agents, tmrl_like.cli.work", "torch numpy"),
        (
            "import tmrl_like.worker.link_process",
            "torch gymnasium cv2 rtgym wandb asyncio cryptography tmrl_like.worker.worker",
        ),
    ],
)
def test_each_part_imports_only_what_it_uses(way, absent):
    if way == SERVE:  # only the first server here makes keys, which takes a lock
        KeyFolder(keys_folder()).server_keys()
    code = f"{way}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(python("-c", code)[0].splitlines()[-1])
    assert set(absent.split()).isdisjoint(loaded)


def test_importing_every_module_touches_neither_files_nor_logging_nor_the_environment(tmp_path):
    names = [f"tmrl_like.{name}" for name, _ in _modules() if name not in ("__init__", "__main__")]
    code = f"""
import importlib, logging, os, signal, threading
before, handlers = dict(os.environ), signal.getsignal(signal.SIGINT)
for name in {names!r}:
    importlib.import_module(name)
changed = {{k for k in before.keys() | os.environ.keys() if before.get(k) != os.environ.get(k)}}
ours = {{k for k in changed if k.startswith("TMRL")}} | ({{"OMP_NUM_THREADS"}} & changed)
assert not ours, ours
assert not logging.getLogger("tmrl_like").handlers
assert logging.getLogger("tmrl_like").level == logging.NOTSET
assert signal.getsignal(signal.SIGINT) is handlers
assert [t.name for t in threading.enumerate() if t.name.startswith("tmrl")] == []
"""
    python("-c", code, HOME=str(tmp_path), USERPROFILE=str(tmp_path))
    assert [p.name for p in tmp_path.rglob("*") if "tmrl" in p.name] == []


def test_no_file_of_the_repository_names_this_machine_or_a_package_registry():
    suspicious = re.compile("[/](work|opt|root)/|/home[/]user|pypi[.]|files[.]pythonhosted")
    folders = [ROOT / name for name in ("tmrl_like", "tests", "config", "docs", "tutorials", ".ci")]
    for file in [*ROOT.iterdir(), *(file for folder in folders for file in folder.rglob("*"))]:
        is_made = not {"_build", "__pycache__", ".git"}.isdisjoint(file.parts)
        if (
            file.is_file()
            and not is_made
            and file.suffix in (".py", ".md", ".toml", ".yaml", ".txt", ".cfg", "")
        ):
            found = suspicious.search(file.read_text(encoding="utf-8"))
            assert found is None, f"{file.relative_to(ROOT)} mentions {found}"
