"""The figures that are published: a JSON file in the repository, and the table of README.md made from it.

Rule: no figure in the table is typed by hand; `make bench-table` measures anew and writes both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench import table

_FILE = Path(__file__).parent / "results.json"


def keep(document: Mapping[str, Any]) -> None:
    """Make these the published figures, in README.md too."""
    from tests import readme  # which asks this module for the table

    _FILE.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    readme.README.write_text(readme.regenerated(readme.README.read_text()))


def published() -> str:
    """The table for README.md."""
    return table.markdown(json.loads(_FILE.read_text()))
