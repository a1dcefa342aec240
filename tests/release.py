"""Judges what `make dist` made: `python -m tests.release DIRECTORY [--final]`.

Rule: the version stands in sidecar/__init__.py; whatever else shows one is compared with it.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from sidecar import __version__

ROOT = Path(__file__).parent.parent
# Without these whoever has the sdist can neither build the image nor deploy it.
IN_SDIST = (
    "Dockerfile",
    "requirements.txt",
    "deploy/image/install.sh",
    "deploy/README.md",
    "config/sidecar.yaml",
)
IN_WHEEL = ("sidecar/cli.py", "sidecar/py.typed", "sidecar/lab/cli.py")


def manifests() -> Iterator[str]:
    """Name the manifests whose image has another version."""
    base: Any = yaml.safe_load((ROOT / "deploy" / "base" / "kustomization.yaml").read_text())
    for image in base["images"]:
        if image["name"] == "sidecar" and image["newTag"] != __version__:
            yield f"deploy/base/kustomization.yaml: image {image['newTag']}, not {__version__}"


def artefacts(made: Path) -> Iterator[str]:
    """Name what is missing or wrong in wheel, sdist and SBOM."""
    wheel = made / f"sidecar-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened_wheel:
        names = opened_wheel.namelist()
    yield from (f"{wheel.name}: no {name}" for name in IN_WHEEL if name not in names)
    yield from (f"{wheel.name}: {name}" for name in names if not name.startswith(("sidecar/", "sidecar-")))
    sdist = made / f"sidecar-{__version__}.tar.gz"
    with tarfile.open(sdist) as opened:
        within = opened.getnames()
    yield from (
        f"{sdist.name}: no {name}" for name in IN_SDIST if f"sidecar-{__version__}/{name}" not in within
    )
    bom = json.loads((made / f"sidecar-{__version__}.cdx.json").read_text())
    yield from parts(bom)


def parts(bom: Any) -> Iterator[str]:
    """Name what the SBOM and the lock file do not have alike."""
    listed = {(part["name"].lower(), part["version"]) for part in bom["components"]}
    lock = (ROOT / "requirements.txt").read_text()
    locked = {
        (name.lower(), version) for name, version in re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE)
    }
    yield from (f"SBOM: {name} {version}" for name, version in sorted(listed ^ locked))


def changelog() -> Iterator[str]:
    """Say so when the version has no section with a date."""
    if not re.search(rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", _changes(), re.MULTILINE):
        yield f"CHANGELOG.md: no section '## [{__version__}] - <date>'"


def _changes() -> str:
    return (ROOT / "CHANGELOG.md").read_text()


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    wrong = [*manifests(), *artefacts(Path(sys.argv[1]))]
    if "--final" in sys.argv:
        wrong += changelog()
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
