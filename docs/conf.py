"""Sphinx configuration. Build with: sphinx-build -W -b html docs docs/_build/html."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

import tmrl_like

project = "tmrl_like"
author = "the tmrl_like authors"
copyright = author
version = release = tmrl_like.__version__

extensions = [
    "myst_parser",
    "notebook",
    "reference",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"tmrl_like {release}"

myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]

autoclass_content = "both"  # what a class is, then what its constructor takes
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88
autodoc_typehints_format = "short"
# `name` in a docstring leads there, where it is on the page; else it is code
default_role = "py:obj"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
nitpicky = False  # docstrings name types in plain text, not as cross-references

copybutton_exclude = ".linenos, .gp, .go"  # neither prompts nor output


def whole_sentences(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Napoleon takes what stands before a colon in an attribute's first line for its type: give it
    an empty comment.
    """
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]


def python_signatures(app: object, *about: Any) -> tuple[str, str | None] | None:
    """Sphinx lays out what it can parse: not a dataclass's <factory>. What a protocol takes is
    nobody's business.
    """
    signature, returned = about[-2:]
    return signature and (
        signature.replace("<factory>", "...").replace("(*args, **kwargs)", ""),
        returned,
    )


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", python_signatures)
    app.connect("autodoc-process-docstring", whole_sentences, priority=400)  # before Napoleon
