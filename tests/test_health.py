"""What the image's HEALTHCHECK says, asked of a sidecar that runs as a process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sidecar.health import main
from tests.commands import command
from tests.test_answers import closed_port


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "tls"])
async def test_a_sidecar_that_serves_is_healthy(tmp_path: Path, *, plain: bool) -> None:
    async with command(tmp_path, closed_port(), plain=plain) as running:
        assert main(Path(f"/proc/{running.process.pid}")) == 0


async def test_a_sidecar_that_has_ended_is_not_healthy(tmp_path: Path) -> None:
    async with command(tmp_path, closed_port()) as running:
        remembered = tmp_path / "process"
        remembered.mkdir()
        for file in ("cmdline", "environ"):
            shutil.copyfile(f"/proc/{running.process.pid}/{file}", remembered / file)
        assert main(remembered) == 0
    assert main(remembered) == 1


def test_a_command_line_that_no_sidecar_starts_with_is_not_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cmdline").write_bytes(b"/bin/python\0/bin/sidecar\0--port=none\0")
    (tmp_path / "environ").write_bytes(b"PATH=/bin\0")

    assert main(tmp_path) == 1
    assert "--port: 'none' is not a port" in capsys.readouterr().err


def test_a_process_that_there_is_not_is_not_healthy(tmp_path: Path) -> None:
    assert main(tmp_path / "none") == 1
