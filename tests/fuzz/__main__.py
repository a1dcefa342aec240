"""Fuzzes the seams, guided by coverage (`make fuzz`), or runs one of them on one file.

Rule: each seam in a process of its own, as many at once as there are cores; inputs that reach new code, and
those that fail, stay in .fuzz/.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
KEPT = ROOT / ".fuzz"
NAMES = ("bodies", "requests", "streams", "responses")
# Inputs are short: what is long is long by repetition, and costs runs per second.
MAX_INPUT_BYTES = 4096
# One input that takes longer is a fault by itself.
INPUT_TIMEOUT_S = 20
RSS_LIMIT_MIB = 2048
_UNITS_S = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> int:
    """`60s`, `10m`, `1h`. Raises SystemExit for anything else."""
    found = re.fullmatch(r"(\d+)([smh])", text)
    if found is None:
        raise SystemExit(f"fuzz: {text!r} is not a time such as 60s or 10m")
    return int(found[1]) * _UNITS_S[found[2]]


def run_one(name: str, for_s: int) -> None:
    """Fuzz one seam in this process; libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["sidecar", "h11"]):
        from tests.fuzz.seams import SEAMS
        from tests.fuzz.seeds import SEEDS
    corpus = KEPT / name
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as seeds:
        for number, seed in enumerate(SEEDS[name]):
            (Path(seeds) / str(number)).write_bytes(seed)
        options = (
            f"-max_total_time={for_s} -max_len={MAX_INPUT_BYTES} -timeout={INPUT_TIMEOUT_S}"
            f" -rss_limit_mb={RSS_LIMIT_MIB} -artifact_prefix={KEPT}/{name}- -print_final_stats=1"
        )
        atheris.Setup([sys.argv[0], *options.split(), str(corpus), seeds], SEAMS[name])
        atheris.Fuzz()


def replay(name: str, file: Path) -> None:
    """Run one input, without a fuzzer: it raises what is wrong."""
    from tests.fuzz.seams import SEAMS

    SEAMS[name](file.read_bytes())


def run_all(for_s: int) -> int:
    """Fuzz every seam for that long; 1 when one of them found something."""
    left, running, failed = list(NAMES), dict[str, subprocess.Popen[bytes]](), False
    KEPT.mkdir(exist_ok=True)
    while left or running:
        while left and len(running) < (os.cpu_count() or 1):
            name = left.pop(0)
            with (KEPT / f"{name}.log").open("wb") as log:
                command = [sys.executable, "-m", "tests.fuzz", name, f"{for_s}s"]
                running[name] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        time.sleep(0.2)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            failed |= _ended(name, running.pop(name).returncode)
    return int(failed)


def _ended(name: str, code: int) -> bool:
    """Say what came of one; whether it failed."""
    log = (KEPT / f"{name}.log").read_text(errors="replace")
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", log)
    covered = re.findall(r"cov: (\d+)", log)
    kept = len(list((KEPT / name).iterdir())) if (KEPT / name).is_dir() else 0
    figures = (runs[1] if runs else "?", covered[-1] if covered else "?", kept)
    print("{}: {} runs, {} edges, {} inputs kept".format(name, *figures))
    if code:
        print(log[-4000:])
    return bool(code)


def main(args: list[str]) -> int:
    """`TIME`, `SEAM TIME`, or `SEAM FILE`."""
    match args:
        case [for_text]:
            return run_all(seconds(for_text))
        case [name, what] if name in NAMES and Path(what).is_file():
            replay(name, Path(what))
        case [name, for_text] if name in NAMES:
            run_one(name, seconds(for_text))
        case _:
            raise SystemExit(
                f"usage: python -m tests.fuzz [SEAM] TIME | SEAM FILE; seams: {', '.join(NAMES)}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
