"""Keeps the generated parts of README.md: `python -m tests.readme` writes them, `--check` compares."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from sidecar.calibrate.outcomes import MEANINGS
from sidecar.observers.families import FAMILIES
from sidecar.observers.kinds import Counter, Gauge, Histogram, Label
from sidecar.observers.peers import PEER_FAMILIES
from sidecar.settings import flags_table
from tests.bench.kept import published

README = Path(__file__).parent.parent / "README.md"


def metrics_table() -> str:
    """All metrics with their labels, as a markdown table."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for family in (*FAMILIES, *PEER_FAMILIES):
        labels = [] if isinstance(family, Histogram) else [_label(label) for label in family.labels]
        if family in PEER_FAMILIES:
            labels.insert(0, "source (with `--metrics-peers`)")
        lines.append(f"| `{family.name}` | {_KINDS[type(family)]} | {'; '.join(labels)} | {family.help} |")
    return "\n".join(lines)


def exit_codes() -> str:
    """How `sidecar calibrate` can end, as a markdown table."""
    lines = ["| code | meaning |", "|---|---|"]
    return "\n".join([*lines, *(f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items())])


_KINDS = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}


def _label(label: Label) -> str:
    return f"{label.name}: {', '.join(label.values)}"


# Generated part by the name in its markers: <!-- begin NAME --> ... <!-- end NAME -->.
PARTS: dict[str, Callable[[], str]] = {
    "calibrate": exit_codes,
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
