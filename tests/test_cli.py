"""The command line answers at once: help, version, or a line per mistake. Only serving loads the server."""

import os
import shlex
import subprocess
import sys
import time

import pytest

from sidecar import __version__
from sidecar.cli import main
from sidecar.settings.model import SETTINGS

# Half a second and more each to import; none is needed to refuse a flag.
HEAVY = ("fastapi", "uvicorn", "httpx", "opentelemetry", "httptools", "cryptography", "msgspec", "yaml")


def run(*argv: str, python: str = "-m sidecar", **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python.split(" ", 1), *argv],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
        env={"PATH": os.environ["PATH"], "COLUMNS": "100", **environ},
    )


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--port=0"], "--port: '0' is not a port (1 to 65535)"),
        (["serve", "--prot", "8000"], "--prot: unknown flag, did you mean --port?"),
        (
            ["serve", "--enable-p2p-pull", "--kv-connector=offloading"],
            "--enable-p2p-pull: goes with --kv-connector=nixlv2 only, not offloading",
        ),
        (
            ["serve", "--moriio-write-mode"],
            "--moriio-write-mode: needs this pod's address (--moriio-local-pod-ip or POD_IP)",
        ),
        (
            ["--configuration={"],
            "--configuration: is not YAML: expected the node content, but found '<stream end>' "
            "in line 1, column 2",
        ),
        (["serv"], "unknown command 'serv', did you mean serve?"),
        (["calibrat"], "unknown command 'calibrat', did you mean calibrate?"),
        (["foo"], "unknown command 'foo', see sidecar --help"),
        (["serve", "now"], "unexpected argument 'now'"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_status_2_within_two_seconds(argv: list[str], line: str) -> None:
    begun_s = time.monotonic()
    ended = run(*argv)
    assert time.monotonic() - begun_s < 2.0
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"sidecar: {line}\n")


def test_several_mistakes_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port=0", "--log-level=loud", "--tracing=maybe"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "sidecar: --port: '0' is not a port (1 to 65535)",
        "sidecar: --tracing: 'maybe' is not a boolean (true or false)",
        "sidecar: --log-level: 'loud' is not one of debug, info, warning, error",
    ]


def test_a_wrong_variable_is_a_mistake_too() -> None:
    ended = run("serve", P2P_CONNECTOR_PORT="seven")
    assert ended.returncode == 2
    assert ended.stderr == (
        "sidecar: P2P_CONNECTOR_PORT (--p2p-connector-port): 'seven' is not a port (1 to 65535)\n"
    )


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["serve", "--help"], ["serve", "--port=x", "-h"]])
def test_help_names_every_flag_within_100_columns(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.startswith(
        "Routing sidecar for vLLM pods: peer-to-peer KV pulls and prefill/decode handoff.\n"
    )
    assert "\n  sidecar lab ... " in shown.out
    assert max(map(len, shown.out.splitlines())) <= 100
    for setting in SETTINGS:
        assert setting.name in shown.out


@pytest.mark.parametrize("argv", [["--version"], ["serve", "--version"]])
def test_version_is_that_of_the_package(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    assert capsys.readouterr() == (f"sidecar {__version__}\n", "")


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["--port=0"], ["serv"]])
def test_nothing_heavy_is_imported_for_an_answer(argv: list[str]) -> None:
    probe = (
        "import sys; from sidecar.cli import main; main(); "
        f"print(sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", probe, *argv], capture_output=True, text=True, timeout=10, check=True
    )
    assert ended.stderr.splitlines()[-1] == "[]"


def test_ctrl_c_while_a_command_is_imported_is_130_and_nothing_more() -> None:
    probe = (
        "import os, signal, sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'sidecar.doctor.cli':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "from sidecar.cli import main\n"
        "sys.exit(main(['doctor', '--help']))"
    )
    ended = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=10)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_disk_without_room_is_one_line_and_74() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "sidecar", "lab", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=10,
        )
    line = "sidecar: standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (74, line)


def test_help_cut_short_by_its_reader_says_nothing_more() -> None:
    command = f"{shlex.quote(sys.executable)} -m sidecar --help | head -1"
    run = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=20
    )
    assert (run.returncode, run.stdout.count("\n"), run.stderr) == (0, 1, "")
