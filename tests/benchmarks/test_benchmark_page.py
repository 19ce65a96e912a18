"""The benchmark pages show all kept figures and no others."""

import re

import _page
import pytest


@pytest.mark.parametrize("page", _page.PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_the_figures_that_are_kept(page):
    """If this fails, `python tests/benchmarks/_page.py` updates the tables."""
    assert _page.updated(page) == page.read_text(encoding="utf-8")


def test_every_file_of_figures_is_on_one_page():
    texts = [page.read_text(encoding="utf-8") for page in _page.PAGES]
    shown = re.findall(r"<!-- figures: (\w+) -->", "".join(texts))
    assert sorted(shown) == sorted(
        ["summary", *(file.stem for file in _page.FIGURES.glob("*.json"))]
    )
