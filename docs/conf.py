"""Sphinx configuration. Build with: sphinx-build -W -b html docs docs/_build/html."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import tmrl_like

project = "tmrl_like"
author = "the tmrl_like authors"
copyright = author
version = release = tmrl_like.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"tmrl_like {release}"

myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures stay readable; types stand in the source and are checked by mypy
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
nitpicky = False  # docstrings name types in plain text, not as cross-references
