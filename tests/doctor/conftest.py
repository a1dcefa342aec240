"""What all tests of the command share."""

from __future__ import annotations

import pytest

from sidecar.doctor import settle


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedded engines count at once: nothing that has not risen by then will."""
    monkeypatch.setattr(settle, "WITHIN_S", 0.4)
    monkeypatch.setattr(settle, "_EVERY_S", 0.02)
