"""The flags: what they mean, and what is refused."""

from __future__ import annotations

import re

import pytest

from sidecar.calibrate.cli import main
from sidecar.calibrate.options import parsed
from sidecar.calibrate.outcomes import MEANINGS, Outcome

PAIR = ("--source=http://a:1", "--consumer=http://b:2")


def test_what_is_not_said_has_its_default() -> None:
    options = parsed(PAIR)
    assert options.lengths == (2048, 4096, 8192, 16384, 32768, 49152)
    assert (options.rounds, options.headroom, options.load, options.dp_ranks) == (5, 1.2, 0, 1)
    assert (options.via, options.seed, options.model, options.yes, options.files) == (
        "auto",
        None,
        None,
        False,
        {},
    )
    assert options.timeout_s == 120.0


def test_what_is_said_is_read() -> None:
    options = parsed(
        (
            *PAIR,
            "--lengths=512, 1024",
            "--timeout=1m30s",
            "--header",
            "Authorization: Bearer x",
            "--csv=-",
        )
    )
    assert (options.lengths, options.timeout_s) == ((512, 1024), 90.0)
    assert dict(options.trust.headers) == {"authorization": "Bearer x"}
    assert options.files == {"csv": "-"}


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (PAIR[:1], "the following arguments are required: --consumer"),
        (
            (*PAIR, "--source=ftp://a"),
            "--source: 'ftp://a' is neither an http nor an https URL; such as http://10.0.0.1:8000",
        ),
        ((*PAIR, "--consumer=http://a:1"), "--consumer: is the source itself; a pair is needed"),
        ((*PAIR, "--source-p2p=a"), "--source-p2p: 'a' is not HOST:PORT"),
        (
            (PAIR[0], "--consumer=http://["),
            "--consumer: 'http://[' has no valid host and port; such as http://10.0.0.1:8000",
        ),
        (
            (*PAIR, "--lengths=2048,0"),
            "--lengths: '2048,0' is not a list of up to 64 token counts from 1 to 10,000,000",
        ),
        (
            (*PAIR, f"--lengths={'1,' * 64}1"),
            f"--lengths: '{('1,' * 64)[:97]}...' is not a list of up to 64 token counts from 1 to 10,000,000",
        ),
        (
            (*PAIR, "--lengths=16384", "--rounds=3"),
            "--lengths: only 16,384 tokens; no curve goes through less than 2",
        ),
        (
            (*PAIR, "--lengths=2048,2048", "--rounds=3"),
            "--lengths: only 2,048 tokens; no curve goes through less than 2",
        ),
        (
            (*PAIR, "--lengths=2048,16384", "--rounds=1"),
            "--rounds: 1 of 2 lengths gives 2 points, and a curve with its spread needs 3: say --rounds=2,"
            " or more lengths",
        ),
        ((*PAIR, "--rounds=0"), "--rounds: '0' is not a whole number from 1 to 1,000"),
        ((*PAIR, "--rounds=1001"), "--rounds: '1001' is not a whole number from 1 to 1,000"),
        ((*PAIR, "--load=-1"), "--load: '-1' is not a whole number from 0 to 1,024"),
        ((*PAIR, "--load-tokens=0"), "--load-tokens: '0' is not a whole number from 1 to 10,000,000"),
        ((*PAIR, "--dp-ranks=70000"), "--dp-ranks: '70000' is not a whole number from 1 to 1,024"),
        (
            ("--source=http://a:1", "--consumer=http://b:65535", "--dp-ranks=2"),
            "--dp-ranks: 2 ranks from port 65535 of --consumer on go beyond 65535",
        ),
        (
            (*PAIR, "--source-p2p=a:65534", "--dp-ranks=3"),
            "--dp-ranks: 3 ranks from port 65534 of --source-p2p on go beyond 65535",
        ),
        (
            (*PAIR, "--source-endpoint=a:65534", "--dp-ranks=3"),
            "--dp-ranks: 3 ranks from port 65534 of --source-endpoint on go beyond 65535",
        ),
        (
            ("--source=http://a:8001", "--consumer=http://a:8000", "--dp-ranks=2"),
            "--dp-ranks: 2 ranks of --source and --consumer, counted up from ports 8001 and 8000 of one host,"
            " meet each other",
        ),
        ((*PAIR, "--model="), "--model: '' is not a name"),
        *(((*PAIR, f"--{name}="), f"--{name}: no file is named") for name in ("json", "csv", "svg", "epp")),
        ((*PAIR, "--ca-file="), "--ca-file: no file is named"),
        ((*PAIR, "--headroom=0.5"), "--headroom: '0.5' is not a factor from 1 to 100"),
        ((*PAIR, "--headroom=nan"), "--headroom: 'nan' is not a factor from 1 to 100"),
        (
            (*PAIR, "--timeout=0"),
            "--timeout: '0' is not a duration up to 24h, such as 500ms, 20s or 2m",
        ),
        (
            (*PAIR, "--header=secret"),
            "--header: not 'NAME: VALUE' with a header's name (what was given is not shown)",
        ),
        ((*PAIR, "--header=Content-Length: 3"), "--header: content-length is the command's own"),
        ((*PAIR, "--header=a: secret", "--header=A: secret"), "--header: a is given twice"),
        ((*PAIR, "--json=-", "--csv=-"), "--json, --csv: only one of them can go to standard output"),
        ((*PAIR, "-k"), "--insecure: neither URL is https"),
        (
            ("--source=https://a", "--consumer=https://b", "-k", "--ca-file=x"),
            "--ca-file: has no effect with --insecure",
        ),
        (
            ("--source=https://a", "--consumer=https://b", "--ca-file=/nowhere/x"),
            "--ca-file: /nowhere/x: No such file or directory",
        ),
        ((*PAIR, "--nope"), "unrecognized arguments: --nope"),
    ],
)
def test_a_mistake_is_one_line_and_2(
    flags: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == Outcome.WRONG_USAGE
    assert capsys.readouterr().err == f"sidecar calibrate: {line}\n"


@pytest.mark.parametrize("flags", [("--lengths=1,20", "--rounds=2"), ("--lengths=1,20,30", "--rounds=1")])
def test_the_fewest_points_that_make_a_curve_are_taken(flags: tuple[str, ...]) -> None:
    assert len(parsed((*PAIR, *flags)).lengths) in (2, 3)


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main((*PAIR, "--svg=/nowhere/x.svg")) == Outcome.WRONG_USAGE
    line = "sidecar calibrate: --svg: '/nowhere/x.svg': No such file or directory\n"
    assert capsys.readouterr().err == line


def test_help_has_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("--help",)) == 0
    said = capsys.readouterr().out
    for code, meaning in MEANINGS.items():
        assert re.search(rf"^  {int(code)} +{re.escape(meaning)}$", said, re.MULTILINE)
