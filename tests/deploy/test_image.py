"""The Dockerfile does what .ci/image does without a container, and no more."""

from __future__ import annotations

import re
from fnmatch import fnmatch

from tests.deploy.render import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
BUILD, RUN = DOCKERFILE.split("# Run:")
SCRIPT = "deploy/image/install.sh"


def instructions(stage: str, name: str) -> list[str]:
    """The arguments of every such instruction, continued lines joined."""
    lines = stage.replace("\\\n", " ").splitlines()
    return [line.partition(" ")[2].strip() for line in lines if line.startswith(f"{name} ")]


def test_the_build_is_the_script_and_ci_runs_it_too() -> None:
    assert instructions(BUILD, "RUN") == [f"{SCRIPT} /install"]
    assert instructions(RUN, "RUN") == []
    assert instructions(RUN, "COPY") == ["--from=build /install /usr/local"]
    assert f'{SCRIPT} "$prefix"' in (ROOT / ".ci" / "image").read_text()
    assert "\n.ci/image\n" in (ROOT / ".ci" / "run").read_text()


def test_what_the_script_reads_is_copied_and_not_ignored() -> None:
    copied = [source for line in instructions(BUILD, "COPY") for source in line.split()[:-1]]
    let_through = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")]
    read = re.findall(r'"\$here/([\w./-]+)"', (ROOT / SCRIPT).read_text())

    assert len(read) >= 5
    for path in (*copied, *read):
        assert (ROOT / path).exists(), path
        assert any(path == one or path.startswith(f"{one}/") for one in let_through), path
    for path in read:
        assert any(path == one or path.startswith(f"{one}/") for one in copied), path
    assert not any(fnmatch("tests/x.py", pattern) for pattern in let_through)


def test_it_runs_unprivileged_with_the_arguments_as_they_come() -> None:
    assert instructions(RUN, "USER") == ["65532:65532"]
    assert instructions(RUN, "ENTRYPOINT") == ['["sidecar"]']
    assert instructions(RUN, "CMD") == []
    assert instructions(RUN, "HEALTHCHECK")[0].endswith('CMD ["python", "-m", "sidecar.health"]')
    labels = instructions(RUN, "LABEL")[0]
    for label in ("title", "description", "licenses", "version", "revision", "base.name"):
        assert f"org.opencontainers.image.{label}=" in labels


def test_every_package_comes_by_its_hash() -> None:
    for lock in ("requirements.txt", "deploy/image/requirements-build.txt"):
        text = (ROOT / lock).read_text()
        pinned = re.findall(r"^[\w.-]+==\S+ \\$", text, re.MULTILINE)
        assert len(pinned) == len(re.findall(r"^[a-zA-Z]", text, re.MULTILINE))
        assert len(re.findall("--hash=sha256:", text)) >= len(pinned)
    assert (ROOT / SCRIPT).read_text().count("--require-hashes") == 2
