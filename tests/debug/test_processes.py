"""Debug endpoints of the command: off they cost no import; of several processes each tells of itself."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.commands import command
from tests.debug.serving import DEBUG
from tests.engines import scripted
from tests.serving import post
from tests.test_answers import closed_port
from tests.test_metrics_port import ask, get


async def test_each_process_says_which_it_is_and_tells_of_its_own_exchanges(tmp_path: Path) -> None:
    port = closed_port()
    flags = (f"--metrics-port={port}", DEBUG, "--workers=2", "--pull-verification=off")
    async with scripted() as engine, command(tmp_path, engine.port, *flags) as sidecar:
        for _ in range(12):
            assert (await ask(sidecar.port, post())).status == 200
        workers: dict[int, Any] = {}
        async with asyncio.timeout(30):
            while len(workers) < 2:
                told = json.loads((await ask(port, get("/debug/pulls"))).body)
                assert (told["worker"]["rank"], told["worker"]["of_processes"]) == (0, 2)
                workers[told["worker"]["pid"]] = told["exchanges"]
        assert sum(map(len, workers.values())) == 12
        sidecar.process.terminate()
        assert await sidecar.ended() == 0
        assert "Traceback" not in sidecar.log


async def test_without_them_nothing_of_them_is_loaded() -> None:
    code = (
        "import sys; import sidecar.start; print([name for name in sys.modules if 'sidecar.debug' in name])"
    )
    ran = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await ran.communicate()
    assert output.decode().strip() == "[]"
