"""What is wrong with a command line, in one line that repeats no credential."""

from __future__ import annotations

import pytest

from sidecar.parser import Parser


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--nope"], "unrecognized arguments: --nope"),
        (["--heder=Authorization: Bearer secret"], "unrecognized arguments: --heder"),
        (
            ["--header", "Authorization:", "Bearer", "secret"],
            "unrecognized arguments: 2 words (a value with blanks needs quotes)",
        ),
        (["--no", "secret"], "unrecognized arguments: --no 1 word (a value with blanks needs quotes)"),
        (["--header"], "--header: expected one argument"),
    ],
)
def test_what_nobody_knows_is_named_without_its_values(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = Parser(prog="sidecar x", allow_abbrev=False)
    parser.add_argument("--header")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(argv)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"sidecar x: {line}\n"
