"""What is found out about the pair before anybody is asked."""

from __future__ import annotations

import asyncio
import io
import socket

import pytest

from sidecar.calibrate import scene
from sidecar.calibrate.cli import main
from sidecar.calibrate.options import parsed
from sidecar.calibrate.scene import looked_at
from sidecar.remote import NoAnswer
from tests.calibrate.peers import peer
from tests.test_answers import closed_port

HANGS = "if the consumer cannot reach it either, one pull can make all its later ones hang (vLLM 0.32)"


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """Connections to the P2P tier fail so; None: they are never answered."""

    async def opened(host: str, port: int) -> None:
        if error is None:
            await asyncio.sleep(60)
        else:
            raise error

    monkeypatch.setattr(asyncio, "open_connection", opened)
    monkeypatch.setattr(scene, "CONNECT_S", 0.05)


async def doubt(*flags: str) -> str | None:
    async with peer({}) as source, peer({}) as consumer:
        pair = (f"--source=http://{source.netloc}", f"--consumer=http://{consumer.netloc}")
        return (await looked_at(parsed((*pair, "--via=engine", *flags)))).doubt


UNRESOLVED = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (UNRESOLVED, "the name does not resolve: Name or service not known"),
        (None, "no connection within 0.05 s"),
        (OSError(113, "No route to host"), "No route to host"),
    ],
)
async def test_a_p2p_endpoint_that_cannot_be_tried_from_here_is_a_doubt(
    error: Exception | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        failing(patched, error)
        told = await doubt("--source-p2p=pod.cluster:7777")
    assert told == f"--source-p2p: pod.cluster:7777 could not be tried from here ({why}): {HANGS}"


async def test_one_that_nobody_named_has_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, OSError(113, "No route to host"))
    with pytest.raises(NoAnswer, match="7777: No route to host; --source-p2p names the source's P2P tier"):
        await doubt()


async def test_one_where_nothing_listens_is_refused_whoever_named_it() -> None:
    port = closed_port()
    with pytest.raises(NoAnswer, match=f"127.0.0.1:{port}: no P2P tier listens there"):
        await doubt(f"--source-p2p=127.0.0.1:{port}")


async def test_one_that_answers_leaves_no_doubt() -> None:
    async with peer({}) as tier:
        assert await doubt(f"--source-p2p={tier.netloc}") is None


async def test_a_doubt_stands_above_the_question(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    async with peer({}) as source, peer({}) as consumer:
        pair = (f"--source=http://{source.netloc}", f"--consumer=http://{consumer.netloc}")
        # Names under .invalid never resolve (RFC 2606 section 2).
        flags = (*pair, "--via=engine", "--source-p2p=pod.invalid:7777")
        assert await asyncio.to_thread(main, flags) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(
        "sidecar calibrate: warning: --source-p2p: pod.invalid:7777 could not be tried"
    )
    assert lines[1].startswith("50 legs: prefixes of 2,048")
