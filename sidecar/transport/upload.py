"""Uploads a streamed request body beside the reading of its answer.

Rule: an upload waits for the socket, never buffers, and leaves every failure with the answer, where the
caller who waits for it finds it.
"""

import asyncio
from collections.abc import AsyncIterator

import httpx

from sidecar.transport.answer import Answer
from sidecar.transport.connection import Connection
from sidecar.transport.request import LAST_CHUNK, StreamedBody, chunk

# RFC 9110 10.1.1: a client must not wait for a 100 forever, since engines may not know it. As long as Go's
# http.DefaultTransport waits.
CONTINUE_WAIT_S = 1.0


class Upload:
    """One streamed body on its way."""

    __slots__ = ("_body",)

    def __init__(self, body: StreamedBody) -> None:
        self._body = body

    async def run(self, connection: Connection, answer: Answer) -> None:
        """Send the body; a failing stream closes the socket and becomes the answer's fault."""
        try:
            if self._body.expects_continue:
                await self._permission(connection, answer)
            await self._send(connection, answer)
        except asyncio.CancelledError as error:
            # Stopped by us because of a final answer, or cancelled from within the stream.
            if not answer.status:
                connection.fail(answer, error)
            raise
        except Exception as error:
            connection.fail(answer, error)

    async def _permission(self, connection: Connection, answer: Answer) -> None:
        answer.continued = connection.future()
        await asyncio.wait((answer.continued,), timeout=CONTINUE_WAIT_S)

    async def _send(self, connection: Connection, answer: Answer) -> None:
        left_bytes = self._body.length_bytes
        pieces = aiter(self._body.stream)
        try:
            async for piece in pieces:
                if answer.settled or not connection.usable:
                    return  # too late for this piece; what happened is with the answer, or will be
                if left_bytes is not None:
                    left_bytes -= len(piece)
                await _send_piece(connection, piece, left_bytes)
        finally:
            await _close(pieces)
        if left_bytes is None:
            connection.write((LAST_CHUNK,))
            connection.request_sent = True
        elif left_bytes:
            raise httpx.LocalProtocolError(
                f"the request body ended {left_bytes} bytes short of Content-Length"
            )


async def _send_piece(connection: Connection, piece: bytes, left_bytes: int | None) -> None:
    """left_bytes: of Content-Length, after this piece; None if chunked."""
    if not piece:
        return  # an empty chunk would end the body
    if left_bytes is None:
        connection.write(chunk(piece))
    elif left_bytes < 0:
        raise httpx.LocalProtocolError(f"the request body is {-left_bytes} bytes longer than Content-Length")
    else:
        connection.write((piece,))
        connection.request_sent = left_bytes == 0
    if connection.write_paused:
        await connection.drained()


async def _close(pieces: AsyncIterator[bytes]) -> None:
    # A generator that is left in the middle would otherwise be finalised by the loop, some time later.
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()
