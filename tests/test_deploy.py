"""The example files of docs/deploy, and the commands of the first pages."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tmrl_like.cli.arguments import Arguments, parse
from tmrl_like.config.loading import load_settings

sys.path.append(str(Path(__file__).parent / "engine"))
from engine_nodes import Nodes, certificate, nats_server

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FILES = sorted((DOCS / "deploy").iterdir())
GUIDES = [
    ROOT / "README.md",
    DOCS / "quickstart.md",
    *(DOCS / "guide" / name for name in ("engine.md", "deploy.md", "windows.md")),
]


def commands(text):
    """Yield the arguments of every `tmrl-like` and `-m tmrl_like` in shell lines, with x for each
    variable.
    """
    text = re.sub(r"\$(\w+|\(\w+\)|\{[^}]*\})", "x", re.sub(r"\s*\\\n\s*", " ", text))
    for found in re.findall(r"(?:tmrl-like|-m tmrl_like) ((?:(?!  )[^|;&`\n])+)", text):
        yield shlex.split(found.replace('"', ""), comments=True)


def texts(path):
    """Yield the texts of a file that contain commands. In YAML these are comments and strings,
    which may span several lines.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".yaml":
        yield text
        return
    yield from re.findall("#.*", text)
    waiting = list(yaml.safe_load_all(text))
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict | list):
            waiting += found.values() if isinstance(found, dict) else found


@pytest.mark.parametrize("path", [*FILES, *GUIDES], ids=lambda path: path.name)
def test_every_command_is_one(path):
    found = [arguments for text in texts(path) for arguments in commands(text)]
    assert found or path.suffix in ("", ".conf")
    for words in found:
        arguments = parse(words)
        assert isinstance(arguments, Arguments), words
        if arguments.overrides:
            load_settings(ROOT / "config" / "drone.yaml", arguments.overrides)


def test_yaml_is_yaml_and_names_what_is_there():
    for name, parts in (
        ("compose.yaml", {"engine", "server", "trainer", "worker"}),
        ("compose_one_server.yaml", {"server", "trainer", "worker"}),
    ):
        services = yaml.safe_load((DOCS / "deploy" / name).read_text(encoding="utf-8"))["services"]
        assert set(services) == parts
        for service in services.values():
            assert set(service.get("depends_on", ())) <= parts
            # it is the server itself, or names the one to which it connects
            assert "engine" in parts or "server" in service["command"]
    objects = list(
        yaml.safe_load_all((DOCS / "deploy" / "kubernetes.yaml").read_text(encoding="utf-8"))
    )
    names = {(o["kind"], o["metadata"]["name"]) for o in objects}
    assert len(names) == len(objects)
    for o in objects:
        if o["kind"] in ("StatefulSet", "Deployment", "Job"):
            pod = o["spec"]["template"]["spec"]
            volumes = {
                v["name"]
                for v in (
                    *pod["volumes"],
                    *(c["metadata"] for c in o["spec"].get("volumeClaimTemplates", ())),
                )
            }
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        if o["kind"] == "StatefulSet":
            assert ("Service", o["spec"]["serviceName"]) in names


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    "path", [path for path in FILES if path.suffix == ".sbatch"], ids=lambda path: path.name
)
def test_a_script_for_slurm_is_a_script(path):
    subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.suffix == ".conf"], ids=lambda path: path.name
)
def test_a_nodes_configuration_is_one(path, tmp_path):
    certificate(tmp_path)
    (tmp_path / "ca.crt").write_bytes((tmp_path / "node.crt").read_bytes())
    (tmp_path / "accounts.conf").touch()
    Nodes(tmp_path / "other").user("arena").rename(tmp_path / "arena-node.creds")
    shutil.copy(path, tmp_path)
    command = [nats_server(), "-c", path.name, "-t"]
    checked = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"NODE": "a.example"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
