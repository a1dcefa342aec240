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
    assert dict(options.trust.headers) == {"Authorization": "Bearer x"}
    assert options.files == {"csv": "-"}


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (PAIR[:1], "the following arguments are required: --consumer"),
        (
            (*PAIR, "--source=ftp://a"),
            "--source: 'ftp://a' is not an http or https URL of a pod, such as http://10.0.0.1:8000",
        ),
        ((*PAIR, "--consumer=http://a:1"), "--consumer: is the source itself; a pair is needed"),
        ((*PAIR, "--source-p2p=a"), "--source-p2p: 'a' is not HOST:PORT"),
        ((*PAIR, "--lengths=2048,0"), "--lengths: '2048,0' is not a list of token counts, such as 2048,8192"),
        ((*PAIR, "--rounds=0"), "--rounds: '0' is not a whole number from 1 on"),
        ((*PAIR, "--load=-1"), "--load: '-1' is not a whole number from 0 on"),
        ((*PAIR, "--headroom=0.5"), "--headroom: '0.5' is not a factor from 1 to 100"),
        ((*PAIR, "--headroom=nan"), "--headroom: 'nan' is not a factor from 1 to 100"),
        ((*PAIR, "--timeout=0"), "--timeout: '0' is not a duration, such as 120s or 2m"),
        ((*PAIR, "--header=x"), "--header: 'x' is not 'name: value'"),
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


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main((*PAIR, "--svg=/nowhere/x.svg")) == Outcome.WRONG_USAGE
    assert "No such file or directory: '/nowhere/x.svg'" in capsys.readouterr().err


def test_help_has_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("--help",)) == 0
    said = capsys.readouterr().out
    for code, meaning in MEANINGS.items():
        assert re.search(rf"^  {int(code)} +{re.escape(meaning)}$", said, re.MULTILINE)
