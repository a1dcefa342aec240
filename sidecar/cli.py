"""The command line: `sidecar serve` (or `sidecar --flag=...`), `explain`, `doctor`, `calibrate`, `lab`.

Rule: what is not needed for the answer is not imported, so that a wrong flag is refused at once.
"""

import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial

from sidecar import __version__, interrupts, streams

Run = Callable[[], int]
"""A command that only has to be run; its status."""

# What is wrong was said on stderr; the shell's status for wrong usage.
_WRONG_USAGE = 2

_COMMANDS = ("serve", "explain", "doctor", "calibrate", "lab", "--help", "--version")

_USAGE = """\
Routing sidecar for vLLM pods: peer-to-peer KV pulls and prefill/decode handoff.

Usage:
  sidecar [serve] [--flag=value ...]   serve clients in front of the local engine
  sidecar explain URL|PATH ...         what a request would do, and why, see sidecar explain --help
  sidecar calibrate --source=URL ...   from which length on pulls pay, see sidecar calibrate --help
  sidecar doctor --peers URL,URL ...   why pulls move nothing, see sidecar doctor --help
  sidecar lab ...                      simulated engines and a demonstration, see sidecar lab --help
  sidecar --help | --version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (sys.argv's by default, without the program) and return the exit status.

    Of every command: 130 after Ctrl-C, 74 where standard output cannot be written (`streams`).
    """
    streams.prepare()
    try:
        with interrupts.quiet():
            run = _chosen(list(sys.argv[1:] if argv is None else argv))
        status = run()
        streams.show("", end="")  # what is still buffered, while it can be told that it cannot be written
    except KeyboardInterrupt:
        return interrupts.INTERRUPTED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else _WRONG_USAGE
    return status


def _chosen(words: list[str]) -> Run:
    """The command, imported, with what it is given."""
    match words:
        case ["lab", *rest]:
            from sidecar.lab.cli import main as lab

            return partial(lab, rest)
        case ["explain", *rest]:
            from sidecar.debug.cli import main as explain

            return partial(explain, rest)
        case ["calibrate", *rest]:
            from sidecar.calibrate.cli import main as calibrate

            return partial(calibrate, rest)
        case ["doctor", *rest]:
            from sidecar.doctor.cli import main as doctor

            return partial(doctor, rest)
        case ["serve", *flags]:
            return _serving(flags)
        case [command, *_] if not command.startswith("-"):
            from sidecar.settings.spelling import nearest

            meant = nearest(command, _COMMANDS) or ", see sidecar --help"
            return partial(_refuse, [f"unknown command {command!r}{meant}"])
        case flags:
            return _serving(flags)


def _serving(flags: list[str]) -> Run:
    if "--version" in flags:
        return partial(_show, f"sidecar {__version__}")
    from sidecar.settings import SettingsError, help_text, load

    if "--help" in flags or "-h" in flags:
        import shutil

        return partial(_show, f"{_USAGE}\n{help_text(shutil.get_terminal_size().columns)}")
    warnings: list[str] = []
    try:
        settings = load(flags, os.environ, warn=warnings.append)
    except SettingsError as refused:
        return partial(_refuse, [*warnings, *refused.problems])
    warnings += _unheard(os.environ, tracing=settings.tracing)
    from sidecar.start import serve

    return partial(serve, settings, warnings)


# What OpenTelemetry's API reads while it is imported, which FastAPI does whether traces are on or not: a name
# that it cannot load ends the import with a traceback.
_READ_AT_IMPORT = ("OTEL_PROPAGATORS", "OTEL_PYTHON_CONTEXT")


def _unheard(environ: MutableMapping[str, str], *, tracing: bool) -> list[str]:
    """Take these variables away; what is to be told of them, where traces are on."""
    told = [name for name in _READ_AT_IMPORT if environ.pop(name, "").strip() and tracing]
    return [f"{name}: has no effect here, trace context and baggage cross as the W3C has it" for name in told]


def _show(text: str) -> int:
    streams.show(text)
    return 0


def _refuse(problems: Sequence[str]) -> int:
    for problem in problems:
        print(f"sidecar: {problem}", file=sys.stderr)
    return _WRONG_USAGE
