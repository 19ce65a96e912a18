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
from tmrl_like.experiment import load_experiment

sys.path.append(str(Path(__file__).parent / "engine"))
from engine_nodes import Nodes, certificate, nats_server

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = [
    ROOT / "README.md",
    DOCS / "quickstart.md",
    *(DOCS / "guide" / name for name in ("engine.md", "deploy.md", "windows.md")),
]


def each_of(paths):
    return pytest.mark.parametrize("path", sorted(paths), ids=lambda path: path.name)


def commands(text):
    """Yield the arguments of every `tmrl-like` and `-m tmrl_like` in shell lines, with x for each
    variable.
    """
    text = re.sub(r"\$(\w+|\(\w+\)|\{[^}]*\})", "x", re.sub(r"\s*\\\n\s*", " ", text))
    for found in re.findall(r"(?:tmrl-like|-m tmrl_like) ((?:(?!  )[^|;&`\n])+)", text):
        yield shlex.split(found.replace('"', ""), comments=True)


def texts(path):
    """Return the texts of a file that contain commands. In YAML these are comments and strings,
    which may span several lines.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".yaml":
        return [text]
    strings = [token.value for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken)]
    return re.findall("#.*", text) + strings


@each_of((*(DOCS / "deploy").iterdir(), *GUIDES))
def test_every_command_is_one(path):
    found = [arguments for text in texts(path) for arguments in commands(text)]
    assert found or path.suffix in ("", ".conf")
    for words in found:
        arguments = parse(words)
        assert isinstance(arguments, Arguments), words
        if arguments.overrides:
            load_experiment("drone", arguments.overrides, ())


def documents(name):
    return list(yaml.safe_load_all((DOCS / "deploy" / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("compose.yaml", {"engine", "server", "trainer", "worker"}),
        ("compose_one_server.yaml", {"server", "trainer", "worker"}),
    ],
)
def test_a_composition_names_what_is_there(name, parts):
    (composition,) = documents(name)
    assert set(composition["services"]) == parts
    for service in composition["services"].values():
        assert set(service.get("depends_on", ())) <= parts
        # it is the server itself, or names the one to which it connects
        assert "engine" in parts or "server" in service["command"]


def test_what_kubernetes_is_to_start_names_what_is_there():
    objects = {
        (o["kind"], o["metadata"]["name"]): o.get("spec") for o in documents("kubernetes.yaml")
    }
    assert len(objects) == len(documents("kubernetes.yaml"))
    for (kind, _), spec in objects.items():
        if kind in ("StatefulSet", "Deployment", "Job"):
            pod = spec["template"]["spec"]
            claims = [claim["metadata"] for claim in spec.get("volumeClaimTemplates", ())]
            volumes = {volume["name"] for volume in (*pod["volumes"], *claims)}
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        if kind == "StatefulSet":
            assert ("Service", spec["serviceName"]) in objects


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@each_of((DOCS / "deploy").glob("*.sbatch"))
def test_a_script_for_slurm_is_a_script(path):
    subprocess.run(["bash", "-n", path], check=True)


@each_of((DOCS / "deploy").glob("*.conf"))
def test_a_nodes_configuration_is_one(path, tmp_path):
    certificate(tmp_path)
    shutil.copy(tmp_path / "node.crt", tmp_path / "ca.crt")
    (tmp_path / "accounts.conf").touch()
    Nodes(tmp_path / "other").user("arena").rename(tmp_path / "arena-node.creds")
    shutil.copy(path, tmp_path)
    environment = os.environ | {"NODE": "a.example"}
    subprocess.run(
        [nats_server(), "-c", path.name, "-t"], cwd=tmp_path, env=environment, check=True
    )
