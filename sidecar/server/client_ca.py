"""Demands certificates of clients, signed by the authorities in a file that may change.

Rule: acts. A context can learn authorities and not forget them, so each handshake is judged by the newest
one: the server's own hands over to it when a handshake begins (OpenSSL,
SSL_CTX_set_tlsext_servername_callback, which is called without SNI too).
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from sidecar.server.tls import load_authorities, read_pair

logger = logging.getLogger("sidecar.server")

_FLAG = "--client-ca-file"


class Demand:
    """`--client-ca-file`. context: the one to serve with.

    make: a context with the server's certificate, as it is now; cert_path: where that is from, None for a
    self-signed one. Raises ValueError that begins with the flag.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], ca_file: Path, cert_path: Path | None) -> None:
        self._make = make
        self._ca_file = ca_file
        self._cert_path = cert_path
        try:
            self._seen = self._files()
            self._newest = self.context = self._made()
        except OSError as error:
            raise ValueError(f"{_FLAG}: {ca_file}: {error}") from error
        self.context.sni_callback = self._hand_over

    async def keep_up(self, interval_s: float) -> None:
        """Look at the files that often, until cancelled. What cannot be used is logged; the old one stays.

        Connections keep what they were opened with, and so do sessions of TLS 1.2 that a client resumes.
        """
        while True:
            await asyncio.sleep(interval_s)
            try:
                await asyncio.to_thread(self._renew)
            except (OSError, ValueError) as error:
                logger.error("certificate or authorities not usable, the old ones stay: %s", error)

    def _renew(self) -> None:
        files = self._files()
        if files != self._seen:
            self._seen = files  # also when it cannot be used: said once
            self._newest = self._made()
            logger.info("certificate and authorities of clients loaded")

    def _files(self) -> tuple[bytes, bytes]:
        return self._ca_file.read_bytes(), read_pair(self._cert_path) if self._cert_path else b""

    def _made(self) -> ssl.SSLContext:
        """Raises OSError, and ValueError for the certificate."""
        context = self._make()
        context.verify_mode = ssl.CERT_REQUIRED
        load_authorities(context, self._seen[0])
        # A resumed session is not verified again: no tickets, so that an authority that went is gone.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        return context

    def _hand_over(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest
