"""SECURITY.md names every package that is installed, and tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECURITY = (ROOT / "SECURITY.md").read_text()


def test_every_package_that_serving_installs_has_its_reason() -> None:
    table = SECURITY.partition("<!-- begin dependencies -->")[2].partition("<!-- end dependencies -->")[0]
    rows = [row.split(" | ") for row in table.splitlines()[3:] if row]
    named = [name for row in rows for name in row[0].removeprefix("| ").split(", ")]
    locked = re.findall(r"^([a-z0-9.-]+)==", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(locked)
    assert all(len(row) == 3 and row[1].strip() for row in rows)


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/[a-z_/.]+)`", SECURITY)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []
