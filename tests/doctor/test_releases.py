"""What a version tells of the names that an engine knows: only a release's number tells anything."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.doctor.checks import examined
from sidecar.doctor.findings import Finding, Severity
from sidecar.doctor.told import Families
from sidecar.remote.facts import Facts
from tests.doctor.made import CACHE, told


def names(version: str, **other: Any) -> Finding:
    """The finding of the names that an engine of this version knows."""
    one = told(facts=Facts("m", version=version, cache=CACHE), **other)
    [found] = [finding for finding in examined(one) if finding.check == "parameter names"]
    return found


@pytest.mark.parametrize(
    ("version", "severity", "value"),
    [
        ("0.32.0", Severity.FINE, "of 0.32"),
        ("0.32.1rc1.dev5+g5a3b", Severity.FINE, "of 0.32"),
        ("0.40.1", Severity.FINE, "0.32 or later"),
        ("1.0", Severity.FINE, "0.32 or later"),
        ("0.31.9", Severity.WARNING, "old"),
        ("0.1.7", Severity.WARNING, "old"),
        ("0.1.dev10+g5a3b", Severity.UNTOLD, "not told"),
        ("dev", Severity.UNTOLD, "not told"),
    ],
)
def test_only_a_release_tells_its_age(version: str, severity: Severity, value: str) -> None:
    found = names(version)
    assert (found.severity, found.value) == (severity, value)


def test_counters_of_old_names_are_not_laid_to_a_version_that_is_new() -> None:
    odd = names("0.40.1", families=Families(tiering=True, old_names=True))
    assert odd.says.startswith("names its counters as older versions do: ")
