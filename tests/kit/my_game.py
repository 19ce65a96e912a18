"""The game that the page on desktop games writes."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "environments" / "desktop.md"


def write_my_game(folder):
    """Write the page's first two blocks of code as `my_game.py` and `my_game.yaml`; return the
    latter's path.
    """
    text = PAGE.read_text(encoding="utf-8")
    for language, suffix in (("python", "py"), ("yaml", "yaml")):
        code = re.search(rf"^```{language}\n(.*?)^```", text, re.M | re.S)[1]
        (folder / f"my_game.{suffix}").write_text(code, encoding="utf-8")
    return folder / "my_game.yaml"
