"""docs/benchmarks.md shows the figures that are kept, all of them and no other."""

import re

import _page


def test_the_tables_of_the_page_are_the_figures_that_are_kept():
    """`python tests/benchmarks/_page.py` writes them again."""
    assert _page.page() == _page.PAGE.read_text(encoding="utf-8")


def test_every_file_of_figures_is_on_the_page():
    shown = re.findall(r"<!-- figures: (\w+) -->", _page.PAGE.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(
        ["summary", *(file.stem for file in _page.FIGURES.glob("*.json"))]
    )
