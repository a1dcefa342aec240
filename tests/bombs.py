"""Answers that are small on the wire and large once unpacked."""

from __future__ import annotations

import gzip

from tests.engines import Answer, Got, Script

# 16 MiB in some 100 bytes: more than any bound but one that counts the bytes on the wire.
BOMB = gzip.compress(gzip.compress(bytes(16 * 1024 * 1024)))


def packed(coding: str, content: bytes = BOMB) -> Script:
    """Answers everything with this content in this `Content-Encoding`."""

    async def script(got: Got, answer: Answer) -> None:
        await answer.json(content, headers=[("content-encoding", coding)])

    return script
