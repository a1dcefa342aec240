"""The demonstration, run as a user would."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import sys

import httpx

from sidecar.lab.demo import spans


async def test_it_shows_that_blocks_moved_names_its_debug_pages_and_ends_cleanly_on_ctrl_c() -> None:
    # Without `--keep`, as `make demo` runs it, it ends by itself there.
    async with asyncio.timeout(58):
        demo = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sidecar", "lab", "demo", "--keep"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert demo.stdout is not None
        lines: list[str] = []
        while lines[-1:] != ["Ctrl-C ends it.\n"]:
            lines.append((await demo.stdout.readline()).decode())
            assert lines[-1], lines
        text = "".join(lines)
        assert "pulled 26,048 from A (1.59 MiB)" in text
        assert "Blocks moved: 1.59 MiB from A to B" in text
        assert text.count("└─ HTTP POST") == 3
        assert "FAILED" not in text
        a, b = re.findall(r"http://\S+/debug/", text)
        async with httpx.AsyncClient(trust_env=False) as client:
            assert "<title>sidecar: pulls</title>" in (await client.get(a)).text
            pulls = (await client.get(f"{b}pulls")).json()["exchanges"]
        assert [told["source"] for told in pulls if told["outcome"] in ("moved", "unknown", "pending")] != []
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does it: to all of them
        output, said = await demo.communicate()
    assert (demo.returncode, output, said) == (0, b"", b"")


def _span(span_id: str, parent: str | None, start: int, kind: str = "CLIENT") -> dict[str, object]:
    return {
        "name": f"span {span_id}",
        "context": {"trace_id": "0xaa", "span_id": span_id},
        "parent_id": parent,
        "kind": f"SpanKind.{kind}",
        "start_time": f"2026-01-01T00:00:0{start}Z",
        "end_time": "2026-01-01T00:00:09Z",
        "attributes": {"server.address": "h", "server.port": 1, "prompt": "x"},
    }


def test_a_trace_is_drawn_as_a_tree_in_the_order_of_its_spans() -> None:
    printed = [
        _span("4", "3", 4),
        _span("2", "1", 3, "INTERNAL"),
        _span("3", "1", 2, "INTERNAL"),
        {**_span("9", None, 0), "context": {"trace_id": "0xbb", "span_id": "9"}},
        _span("1", "of-the-client", 1, "SERVER"),
    ]
    text = "\n".join(json.dumps(span, indent=4) for span in printed) + '\n{"half of'

    drawn = spans.tree(spans.read(io.BytesIO(text.encode()), "aa"))

    assert drawn == [
        "span 1                               8000.0 ms",
        "├─ span 3                            7000.0 ms",
        "│  └─ span 4                         5000.0 ms  to=h port=1",
        "└─ span 2                            6000.0 ms",
    ]
