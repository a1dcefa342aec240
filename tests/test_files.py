"""Regular files and links to them are read; what could be waited on for ever is told from them unopened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.files import is_special


def test_a_file_and_what_leads_to_it_through_links_are_not_special(tmp_path: Path) -> None:
    # As the kubelet mounts a secret: the name leads through a link to a directory of the moment.
    moment = tmp_path / "..2026_11_30"
    moment.mkdir()
    (moment / "ca.crt").write_text("pem")
    (tmp_path / "..data").symlink_to(moment.name)
    (tmp_path / "ca.crt").symlink_to("..data/ca.crt")
    assert not is_special(moment / "ca.crt")
    assert not is_special(tmp_path / "ca.crt")


@pytest.mark.parametrize("linked", [False, True], ids=["itself", "through a link"])
def test_pipes_devices_and_directories_are_special(tmp_path: Path, linked: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", Path("/dev/null"), tmp_path):
        link = tmp_path / f"to-{file.name}"
        link.symlink_to(file)
        assert is_special(link if linked else file)


def test_what_is_not_there_or_out_of_reach_is_for_the_reader_to_say(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nothing")
    for name in ("absent", "dangling", "x" * 300):
        assert not is_special(tmp_path / name)
