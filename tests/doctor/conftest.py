"""What all tests of the command share."""

from __future__ import annotations

import pytest

from sidecar.doctor import asking
from sidecar.remote import settling


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedded engines count at once: nothing that has not risen by then will."""
    monkeypatch.setattr(asking, "UNREADY_S", 0.02)
    monkeypatch.setattr(settling, "WITHIN_S", 0.2)
    monkeypatch.setattr(settling, "EVERY_S", 0.02)
