"""What the command refuses, in one line that names the flag, and how it looks on a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar import streams
from sidecar.doctor import cli
from sidecar.doctor.cli import main
from sidecar.doctor.diagnosis import Diagnosis, Measured, diagnosed
from sidecar.doctor.order import Order
from sidecar.doctor.peers import BadFlag
from sidecar.doctor.told import Told
from sidecar.remote.place import Place
from tests.doctor.made import told

TWO = "--peers=http://127.0.0.1:1,http://127.0.0.1:2"

REFUSED: dict[str, tuple[list[str], str]] = {
    "no peers": ([], "--peers or --inference-pool: one of the two, and not both"),
    "an empty list of peers": (["--peers="], "--peers or --inference-pool: one of the two, and not both"),
    "both": ([TWO, "--inference-pool=ns/p"], "--peers or --inference-pool: one of the two, and not both"),
    "one peer": (["--peers=http://h:1"], "--peers: 1 peer, and it takes two to pull"),
    "one peer twice": (["--peers=http://h:1,http://h:1/"], "--peers: 1 peer, and it takes two to pull"),
    "no URL": (
        ["--peers=ftp://h:1,http://h:2"],
        "--peers: 'ftp://h:1' is neither an http nor an https URL; such as http://10.0.0.1:8000",
    ),
    "no address": (
        ["--peers=http://[::1,http://h:2"],
        "--peers: 'http://[::1' has no valid host and port; such as http://10.0.0.1:8000",
    ),
    "a host of no name": (
        ["--peers=http://xn--a:1,http://h:2"],
        "--peers: 'http://xn--a:1' has a host that no name service knows",
    ),
    "bare words": (
        ["--peers=x,y"],
        "--peers: 'x' is neither a URL nor HOST:PORT; such as http://10.0.0.1:8000",
    ),
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
    "metrics at no address": (
        [TWO, "--metrics=A=http://["],
        "--metrics: 'http://[' has no valid host and port",
    ),
    "metrics at a word": ([TWO, "--metrics=A=x"], "--metrics: 'x' is neither a URL nor HOST:PORT"),
    "a port": ([TWO, "--p2p-port=0"], "--p2p-port: '0' is not a whole number from 1 to 65,471"),
    "a count": ([TWO, "--max-pairs=no"], "--max-pairs: 'no' is not a whole number from 1 to 4,096"),
    "a duration": (
        [TWO, "--timeout=5"],
        "--timeout: '5' is not a duration up to 24h, such as 500ms, 20s or 2m",
    ),
    "no time": (
        [TWO, "--watch", "--interval=0s"],
        "--interval: '0s' is not a duration up to 24h, such as 500ms, 20s or 2m",
    ),
    "a header": (
        [TWO, "-H", "secret"],
        "-H/--header: not 'NAME: VALUE' with a header's name (what was given is not shown)",
    ),
    "a header of framing": (
        [TWO, "--header=Content-Length: 3"],
        "-H/--header: content-length is the command's own",
    ),
    "a header of two lines": (
        [TWO, "--header=a: b\r\nc: d"],
        "-H/--header: the value of a has other characters than printable ASCII",
    ),
    "a header twice": ([TWO, "-Ha: 1", "-HA: 2"], "-H/--header: a is given twice"),
    "a CA file": (
        ["--peers=https://h:1,https://h:2", "--ca-file=/nowhere"],
        "--ca-file: /nowhere: No such file or directory",
    ),
    "no CA file": ([TWO, "--ca-file="], "--ca-file: no file is named"),
    "a CA file for nothing": ([TWO, "-k"], "--insecure: does nothing: no peer's URL is https"),
    "a CA file and any certificate": (
        [TWO, "-k", "--ca-file=x"],
        "--ca-file: does nothing with --insecure, which accepts any certificate",
    ),
    "an unknown flag": ([TWO, "--nope=1"], "unrecognized arguments: --nope"),
    "a pool's name": (
        ["--inference-pool=a/b/c"],
        "--inference-pool: 'a/b/c' is not NS/NAME, names of Kubernetes",
    ),
    "a pool's group": (["--inference-pool=a/b", "--pool-group="], "--pool-group: '' is not an API group"),
    "a group of no pool": ([TWO, "--pool-group=x"], "--pool-group: does nothing without --inference-pool"),
    "a scheme of no pool": (
        [TWO, "--scheme=http"],
        "--scheme: does nothing without --inference-pool: the URLs of --peers have theirs",
    ),
    "an interval of no watch": ([TWO, "--interval=1s"], "--interval: does nothing without --watch"),
    "pairs of the gates": (
        [TWO, "--verify-pull", "--max-pairs=3"],
        "--max-pairs: does nothing with --verify-pull, which tries one pair",
    ),
    "two outputs": ([TWO, "--json", "--output=text"], "--output text: does nothing with --json"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_wrong_is_one_line_and_status_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv, line = REFUSED[words]
    assert main(argv) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"sidecar doctor: {line}\n")


def test_a_ca_file_that_holds_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    assert main([TWO.replace("http:", "https:"), f"--ca-file={tmp_path}/ca.pem"]) == 2
    assert capsys.readouterr().err.startswith(f"sidecar doctor: --ca-file: {tmp_path}/ca.pem: ")


def test_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr()
    told = " ".join(said.out.split())
    assert "0 none above a note, 1 a warning, 3 an error; 2 wrong usage" in told
    assert "Ctrl-C: that of the last whole round (--watch), 130 before one" in told
    assert "(12; 1 to 4,096)" in told
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
    assert capsys.readouterr() == ("", "")


def test_a_fault_of_its_own_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(cli, "diagnose", broken)
    assert main([TWO]) == 70
    assert capsys.readouterr().err == "sidecar doctor: a fault of its own: RecursionError: too deep\n"


def test_a_reader_that_has_seen_enough_changes_no_code_and_ends_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def found(*_: object) -> Diagnosis:
        return diagnosed([told("A", unready="loading"), told("B")], Measured((), 0, 257))

    monkeypatch.setattr(cli, "diagnose", found)
    monkeypatch.setattr(streams, "show", lambda _: False)
    assert main([TWO, "--json"]) == 3
    assert main([TWO, "--watch"]) == 3


def test_a_document_is_in_ascii(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def found(*_: object) -> Diagnosis:
        return diagnosed([told("A", unready="é → ·"), told("B")], Measured((), 0, 257))

    monkeypatch.setattr(cli, "diagnose", found)
    assert main([TWO, "--json"]) == 3
    said = capsys.readouterr().out
    assert said.isascii()
    assert "is not ready: é → ·" in [one["says"] for one in json.loads(said)["findings"]]


def test_a_pool_that_is_not_found_ends_the_first_round_and_no_later_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = [Place.parse("http://h:1"), Place.parse("http://h:2")]
    answers: list[BaseException | None] = []

    async def listed(*_: object) -> tuple[Place, ...]:
        if answer := answers.pop(0):
            raise answer
        return tuple(pods)

    async def found(order: Order, *_: object) -> Diagnosis:
        return diagnosed([Told(peer) for peer in order.peers], Measured((), 0, 257))

    monkeypatch.setattr(cli, "pool_places", listed)
    monkeypatch.setattr(cli, "diagnose", found)
    flags = ["--inference-pool=ns/p", "--watch", "--interval=1ms", "--json"]
    gone = BadFlag("--inference-pool: the Kubernetes API answered 503")
    answers += [None, gone, None, KeyboardInterrupt()]
    assert main(flags) == 3
    said = capsys.readouterr()
    assert said.err == f"sidecar doctor: {gone}\n"
    assert said.out.count("\n") == 2
    answers.append(gone)
    assert (main(flags), capsys.readouterr().err) == (2, f"sidecar doctor: {gone}\n")
