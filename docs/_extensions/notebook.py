"""Sphinx extension: a Jupyter notebook is a page, as it was saved, with what its cells printed and
drew.

Nothing runs while the pages are built, and nothing has to be installed for it. tests/test_docs.py
runs the cells.
"""

from __future__ import annotations

import json
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown that says the same."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse("\n\n".join(map(as_markdown, json.loads(inputstring)["cells"])), document)


def as_markdown(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(_output, cell["outputs"])])


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![](data:image/png;base64,{''.join(data['image/png'].split())})"
    return f"```text\n{''.join(output.get('text', data.get('text/plain', ''))).rstrip()}\n```"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True}
