"""Everything that shows the version shows the one of sidecar/__init__.py."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

import pytest

from sidecar import __version__
from tests import release


def test_the_installed_package_has_the_version() -> None:
    assert importlib.metadata.version("sidecar") == __version__


def test_the_manifests_name_the_image_of_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(release.manifests()) == []
    monkeypatch.setattr(release, "__version__", "9.9.9")
    assert list(release.manifests()) == [f"deploy/base/kustomization.yaml: image {__version__}, not 9.9.9"]


def test_a_release_needs_its_section_in_the_changelog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "_changes", lambda: f"## [{__version__}] - 2026-12-01\n")
    assert list(release.changelog()) == []
    monkeypatch.setattr(release, "_changes", lambda: "## [Unreleased]\n")
    assert list(release.changelog()) == [f"CHANGELOG.md: no section '## [{__version__}] - <date>'"]


def _lock() -> Iterator[dict[str, str]]:
    for line in (release.ROOT / "requirements.txt").read_text().splitlines():
        name, found, version = line.partition("==")
        if found and not line.startswith((" ", "#")):
            yield {"name": name, "version": version.split(" ")[0]}


def test_the_sbom_has_what_the_lock_file_has_and_nothing_else() -> None:
    locked = list(_lock())
    assert list(release.parts({"components": locked})) == []
    assert list(release.parts({"components": locked[1:]})) == [
        f"SBOM: {locked[0]['name']} {locked[0]['version']}"
    ]
