"""The files of a report: found out before it, written with it, gone without it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.calibrate.flags import FILES
from sidecar.calibrate.outcomes import Outcome
from sidecar.calibrate.outputs import BadOutput, opened
from sidecar.calibrate.running import show
from tests.calibrate.made import legs_of_profile, report


def refused(files: dict[str, str]) -> str:
    with pytest.raises(BadOutput) as error, opened(files):
        pass
    return str(error.value)


def test_what_is_written_is_in_place_of_what_was_there(tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.write_text("something longer than what comes")
    with opened({"json": str(place)}) as outputs:
        assert place.read_text() == "something longer than what comes"
        outputs["json"].write("±")
    assert place.read_bytes() == "±".encode()


def test_without_a_report_nothing_is_left_and_nothing_lost(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("kept")
    with opened({"json": str(old), "csv": str(new)}):
        assert new.exists()
    assert (old.read_text(), new.exists()) == ("kept", False)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_written_is_named_by_its_flag(name: str, tmp_path: Path) -> None:
    assert refused({name: f"{tmp_path}"}) == f"--{name}: '{tmp_path}': Is a directory"
    assert refused({name: f"{tmp_path}/no/x"}) == f"--{name}: '{tmp_path}/no/x': No such file or directory"


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused({"svg": f"{tmp_path}/pipe"}).endswith("/pipe': No such device or address")


SPELLINGS: dict[str, Callable[[Path], str]] = {
    "the same": lambda there: f"{there}/a",
    "another spelling": lambda there: f"{there}/./x/../a",
    "a symbolic link": lambda there: f"{there}/soft",
    "a hard link": lambda there: f"{there}/hard",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_two_outputs_do_not_go_to_one_file(spelling: str, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "a").touch()
    (tmp_path / "soft").symlink_to("a")
    (tmp_path / "hard").hardlink_to(tmp_path / "a")
    second = SPELLINGS[spelling](tmp_path)
    said = refused({"json": f"{tmp_path}/a", "epp": second})
    assert said.endswith("is where --json goes")
    assert said.startswith("--epp: '")


def test_a_device_takes_several() -> None:
    with opened({"json": "/dev/null", "csv": "/dev/null", "svg": "-"}) as outputs:
        assert list(outputs) == ["json", "csv"]


def test_standard_output_by_its_path_is_refused() -> None:
    if os.path.realpath("/dev/stdout") != "/dev/null":  # as the tests are run, mostly: a file or a pipe
        assert refused({"json": "/dev/stdout"}) == "--json: '/dev/stdout' is where standard output goes"


def test_a_disk_that_fills_up_costs_its_file_alone_and_is_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"json": "/dev/full", "csv": f"{tmp_path}/csv", "svg": f"{tmp_path}/svg", "epp": "-"}
    with opened(files) as outputs:
        assert show(report(legs_of_profile("glm")), files, outputs) == Outcome.UNWRITTEN
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "sidecar calibrate: --json: '/dev/full': No space left on device",
        f"csv: {tmp_path}/csv",
        f"svg: {tmp_path}/svg",
    ]
    assert told.out.startswith("# sidecar calibrate, tiny: ")
    assert (tmp_path / "csv").read_text().startswith("prefix_tokens,")
    assert (tmp_path / "svg").read_bytes().isascii()
