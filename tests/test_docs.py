"""The documentation is correct: its code runs, its links lead somewhere, and nothing is missing.
`sphinx-build -W` checks the API reference and that every page is in a table of contents.
"""

import ast
import inspect
import json
import math
import re
import shlex
import textwrap
from contextlib import ExitStack
from pathlib import Path

import matplotlib.pyplot
import pytest
import reliability
import torch
import yaml
from gymnasium import spaces
from house import House
from kit.boxes import box
from kit.fakes import CountingEnv
from kit.ports import free_port
from kit.pythons import python

import tmrl_like.errors
from tmrl_like import load_experiment, partial
from tmrl_like.agents import IQNActor, IQNAgent, SACAgent, SquashedGaussianActor
from tmrl_like.cli.arguments import parse, parsers
from tmrl_like.config.settings import PARTS, SECTIONS
from tmrl_like.metrics.reading import read_records
from tmrl_like.metrics.sinks import tag_of
from tmrl_like.replay import ReplayMemory
from tmrl_like.types import Batch
from tmrl_like.wire.condition import FIGURES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebook").glob("*.ipynb"))
PAGES = sorted(
    p for p in (*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *NOTEBOOKS) if "_build" not in p.parts
)


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def read(path):
    """Return a page as Markdown."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    quoted = {"markdown": "{}", "code": "```python\n{}\n```"}
    cells = json.loads(text)["cells"]
    return "\n\n".join(quoted[cell["cell_type"]].format("".join(cell["source"])) for cell in cells)


def fences(text, language):
    return [
        textwrap.dedent(code)
        for code in re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    ]


def test_every_area_of_faults_section_and_command_has_its_table():
    """The tables themselves are made while the pages are built."""
    assert {proof.area for proof in reliability.proofs()} == set(reliability.AREAS)
    for area, title in reliability.AREAS.items():
        assert f"\n## {title}\n\n```{{reference}} faults {area}\n" in page("reliability.md")
    for section in ("top", *SECTIONS):
        assert f"\n```{{reference}} options {section}\n" in page("configuration.md")
    for name, parser in parsers()[1].items():
        assert f"## `{name}`" in page("cli.md")
        own = parser.format_help().partition("options:")[2].partition("Each key")[0]
        if set(re.findall(r"--[a-z][\w-]+", own)) - {"--help", "--log-level"}:
            assert f"\n```{{reference}} command {name}\n" in page("cli.md")


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def anchors(text):
    """Return the anchors that MyST and GitHub make from headings."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", without_code(text), re.M)
    }


def table_names(text, heading):
    """Return the names in backticks in the first column of the table below a heading."""
    section = re.split(r"^## ", text.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.M)[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.M)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


# -- code ------------------------------------------------------------------------------------------


def test_the_script_in_the_readme_trains(tmp_path):
    (script,) = fences((ROOT / "README.md").read_text(encoding="utf-8"), "python")
    assert len(script.splitlines()) < 25
    shorter = {
        '"rounds": 20, "steps": 500': '"epochs": 1, "rounds": 1, "steps": 20',
        '"start_training": 400': '"start_training": 120',  # one episode
        '"test_episode_interval": 10': '"test_episode_interval": 0',
        "    trainer={": f'    server={{"port": {free_port()}}},\n    trainer={{',
    }
    _, said = python("-c", replaced(script, shorter), cwd=tmp_path, TMRL_LIKE_HOME=str(tmp_path))
    records = read_records(tmp_path / "runs" / "default_run" / "metrics.jsonl")
    *_, newest = (record for record in records if record["kind"] == "round")
    assert newest["training_steps_total"] > 0
    assert math.isfinite(newest["loss_critic"])
    assert re.search(
        r"^trained for \d:\d\d: training return -[\d.]+ at first, -[\d.]+ in the end", said, re.M
    )


def replaced(script, texts):
    for long, short in texts.items():
        assert long in script
        script = script.replace(long, short)
    return script


# figures are shown by a browser
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_the_cells_of_a_notebook_run_from_top_to_bottom(path, tmp_path, monkeypatch, capsys):
    """The notebook was also saved after such a run."""
    cells = [
        cell
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    whole = "\n\n".join("".join(cell["source"]) for cell in cells)
    short = replaced(
        whole, {"STEPS = 5000": "STEPS = 20", '"start_training": 500': '"start_training": 20'}
    )
    monkeypatch.setenv("TMRL_LIKE_HOME", str(tmp_path))
    matplotlib.use("agg")
    exec(compile(short, path, "exec"), {})
    matplotlib.pyplot.close("all")
    printed = [
        line for cell in cells for output in cell["outputs"] for line in output.get("text", ())
    ]
    assert len(capsys.readouterr().out.splitlines()) == len(printed)
    assert printed[0].startswith("5000 training steps")


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_python_on_a_page_is_python(path):
    for code in fences(read(path), "python"):
        ast.parse(code)


# -- links -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    text = read(path)
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), f"{path.name}: {target}"
        assert linked.is_relative_to(ROOT), f"{path.name}: {target}"
        if anchor:
            assert anchor in anchors(read(linked)), f"{path.name}: {target}"


# -- metrics ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The records that a short real training writes."""
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    env_cls = partial(CountingEnv, episode_steps=40, step_s=0.002)
    # twice the 500 training steps after which the diagnosis measures, however few samples come
    schedule = {"rounds": 24, "steps": 45}
    parts = {
        "env_cls": env_cls,
        "memory_cls": partial(ReplayMemory, batch_size=8),
        "training_agent_cls": SACAgent,
    }
    with ExitStack() as stack:
        house = House("inproc", stack)
        house.server()
        worker = house.worker(env_cls, SquashedGaussianActor)
        trainer = house.trainer(
            training=parts | schedule | {"held_out_share": 0.05}, metrics_path=path
        )
        house.start(worker.run, test_episode_interval=2, verbose=False)
        trainer.run()
    return list(read_records(path))


SUMMED = {figure.metric_of(field) for field, figure in FIGURES.items() if figure.is_summed}
"""Metrics of the fleet that are documented where workers count them."""


SECTIONS_OF_METRICS = {  # sections of the page, with their groups in TensorBoard
    "The schedule": {"schedule"},
    "Freshness and timing": {"timing"},
    "Episodes": {"episodes"},
    "The fleet": {"fleet"},
    "The diagnosis": {"diagnosis"},
    "Of the agent": {"losses", "agent"},
}


def test_every_metric_of_a_round_is_explained_in_its_group_and_no_other(records):
    produced = {name for record in records if record["kind"] == "round" for name in record} - {
        "kind",
        "time_s",
    }
    explained = {
        heading: table_names(page("metrics.md"), heading) for heading in SECTIONS_OF_METRICS
    }
    assert produced == SUMMED.union(*explained.values())
    for heading, groups in SECTIONS_OF_METRICS.items():
        assert {tag_of(name).partition("/")[0] for name in explained[heading]} == groups
    assert {tag_of(name).partition("/")[0] for name in SUMMED} == {"fleet"}


def test_every_metric_of_quantiles_is_explained_and_no_other():
    agent = IQNAgent(box(1.0, 2), spaces.Discrete(2), actor_cls=partial(IQNActor, width=4))
    obs, numbers = torch.zeros(4, 2), torch.zeros(4)
    batch = Batch(obs, numbers.long(), numbers, obs, numbers, numbers)
    named = set(agent.train(batch)) | {f"{name}_held_out" for name in agent.evaluate(batch)}
    assert named == table_names(page("metrics.md"), "Of IQNAgent")


def test_every_field_of_an_episode_record_is_explained_and_no_other(records):
    produced = {name for record in records if record["kind"] == "episode" for name in record}
    assert produced == table_names(page("metrics.md"), "Episode records")


def test_the_sweep_of_the_guide_changes_keys_of_its_experiment_and_compares_a_metric():
    (text,), (loop,) = (fences(page("guide/sweeps.md"), language) for language in ("yaml", "bash"))
    sweep = yaml.safe_load(text)
    assert sweep["metric"]["name"] in table_names(page("metrics.md"), "Episodes")
    chosen = [
        f"--{key}={spec.get('values', [spec.get('min')])[-1]}"
        for key, spec in sweep["parameters"].items()
    ]
    assert "--agent.gamma=0.98" in chosen
    (line,) = [words for words in sweep["command"] if "tmrl-like" in words]
    values = {"$WANDB_RUN_ID": "x", '"$@"': " ".join(chosen), "$lr": "1e-3", "$seed": "1"}
    for command in re.findall("tmrl-like (.*)", f"{line}\n{loop}"):
        for variable, value in values.items():
            command = command.replace(variable, value)
        arguments = parse(shlex.split(command))
        assert load_experiment(ROOT / arguments.place, arguments.overrides).run_name != "drone"


# -- errors ----------------------------------------------------------------------------------------


def test_the_tree_of_errors_is_that_of_the_classes():
    """The tree is drawn at the top of `errors.py`, and on its page."""
    drawn, above = [], []
    for line in tmrl_like.errors.__doc__.splitlines():
        if branch := re.match(r"    ([│ ]*(?:├── |└── )?)(\w+Error)\b", line):
            depth = len(branch[1]) // 4
            above[depth:] = [branch[2]]
            drawn.append((branch[2], above[depth - 1] if depth else "Exception"))
    classes = [value for value in vars(tmrl_like.errors).values() if inspect.isclass(value)]
    assert drawn == [(cls.__name__, cls.__bases__[0].__name__) for cls in classes]


# -- configuration and command line ----------------------------------------------------------------


def test_every_part_is_in_the_reference_with_what_is_supplied():
    text = page("configuration.md")
    for name, supplied in PARTS.items():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", text, re.M)
        assert all(f"`{argument}`" in row for argument in supplied), name


def test_every_text_has_the_secret_line_of_a_key_read_from_standard_input():
    """An argument would remain in the shell's history and be visible in the list of processes."""
    texts = [*PAGES, *sorted((ROOT / "tmrl_like").rglob("*.py"))]
    found = [
        f"{path.name}: {join}"
        for path in texts
        for join in re.findall(r"keys join [^-\s`]\S*", path.read_text("utf-8"))
    ]
    assert found == []
