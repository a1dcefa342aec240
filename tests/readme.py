"""Keeps the generated parts of README.md: `python -m tests.readme` writes them, `--check` compares."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from sidecar.observers.families import FAMILIES, Counter
from sidecar.settings import flags_table
from tests.bench.kept import published

README = Path(__file__).parent.parent / "README.md"


def metrics_table() -> str:
    """All metrics with their labels, as a markdown table."""
    lines = ["| metric | label | values | meaning |", "|---|---|---|---|"]
    for family in FAMILIES:
        label = values = ""
        if isinstance(family, Counter) and family.label:
            label, values = family.label, ", ".join(family.values)
        lines.append(f"| `{family.name}` | {label} | {values} | {family.help} |")
    return "\n".join(lines)


# Generated part by the name in its markers: <!-- begin NAME --> ... <!-- end NAME -->.
PARTS: dict[str, Callable[[], str]] = {
    "flags": flags_table,
    "metrics": metrics_table,
    "speed": published,
}


def regenerated(text: str) -> str:
    """The README with every generated part made anew. Raises ValueError when a part's markers are missing."""
    for name, make in PARTS.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"README.md must have {begin} and {end} once")
        pattern = re.compile(re.escape(begin) + ".*" + re.escape(end), re.DOTALL)
        part = f"{begin}\n{make().strip()}\n{end}"
        text = pattern.sub(lambda _, part=part: part, text)  # type: ignore[misc]
    return text


def main() -> int:
    """Write the README, or with --check say whether it has to be."""
    old = README.read_text()
    new = regenerated(old)
    if "--check" not in sys.argv:
        README.write_text(new)
        return 0
    if new != old:
        print("README.md: the generated parts are old; run `make format`", file=sys.stderr)
    return int(new != old)


if __name__ == "__main__":
    sys.exit(main())
