"""What the command refuses, in one line that names the flag, and how it looks on a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.doctor import cli
from sidecar.doctor.cli import main

TWO = "--peers=http://127.0.0.1:1,http://127.0.0.1:2"

REFUSED: dict[str, tuple[list[str], str]] = {
    "no peers": ([], "--peers or --inference-pool: one of the two, and not both"),
    "both": ([TWO, "--inference-pool=ns/p"], "--peers or --inference-pool: one of the two, and not both"),
    "one peer": (["--peers=http://h:1"], "--peers: 1 peer, and it takes two to pull"),
    "one peer twice": (["--peers=http://h:1,http://h:1/"], "--peers: 1 peer, and it takes two to pull"),
    "no URL": (["--peers=ftp://h:1,http://h:2"], "--peers: 'ftp://h:1' is neither an http nor an https URL"),
    "too many": (
        [f"--peers={','.join(f'http://h:{port}' for port in range(1, 66))}"],
        "--peers: 65 peers, at most 64",
    ),
    "an override of nobody": (
        [TWO, "--p2p=C=h:1"],
        "--p2p: 'C=h:1' is not PEER=…, with a peer's name (A, B, …) or its URL",
    ),
    "an override without a port": (
        [TWO, "--p2p=A=h:x"],
        "--p2p: 'h:x' is neither HOST:PORT nor a port: no port from 1 to 65535 after the host",
    ),
    "metrics that are no URL": (
        [TWO, "--metrics=A=ftp://h"],
        "--metrics: 'ftp://h' is neither an http nor an https URL",
    ),
    "a port": ([TWO, "--p2p-port=0"], "--p2p-port: '0' is not a number from 1 to 65471"),
    "a count": ([TWO, "--max-pairs=no"], "--max-pairs: 'no' is not a number from 1 to 4096"),
    "a duration": (
        [TWO, "--timeout=5"],
        "--timeout: '5' has no unit (one of ns, us, ms, s, m, h)",
    ),
    "no time": ([TWO, "--interval=0s"], "--interval: '0s' is no time at all"),
    "a header": ([TWO, "-H", "secret"], "-H: 'secret' is not 'name: value'"),
    "a CA file": ([TWO, "--ca-file=/nowhere"], "--ca-file: /nowhere: No such file or directory"),
    "an unknown flag": ([TWO, "--nope"], "unrecognized arguments: --nope"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_wrong_is_one_line_and_status_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv, line = REFUSED[words]
    assert main(argv) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"sidecar doctor: {line}\n")


def test_a_ca_file_that_holds_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    assert main([TWO, f"--ca-file={tmp_path}/ca.pem"]) == 2
    assert capsys.readouterr().err.startswith(f"sidecar doctor: --ca-file: {tmp_path}/ca.pem: ")


def test_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr()
    assert "0 none above a note, 1 a warning, 3 an error; 2 wrong usage" in said.out
    assert said.err == ""


class Terminal:
    """A stream that is one, or not."""

    def __init__(self, *, tty: bool) -> None:
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.mark.parametrize(
    ("tty", "environ", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    tty: bool, environ: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cli.colours(Terminal(tty=tty)) is coloured


def test_ctrl_c_before_anything_was_found_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "diagnose", interrupted)
    assert main([TWO]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_fault_of_its_own_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(cli, "diagnose", broken)
    assert main([TWO]) == 70
    assert capsys.readouterr().err == "sidecar doctor: a fault of its own: RecursionError: too deep\n"
