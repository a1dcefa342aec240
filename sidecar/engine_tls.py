"""Keeps the TLS contexts towards engines: one for each stage, made anew when a file behind them changes.

Rule: acts only in reading files; a connection keeps the context that it was opened with. Contexts are
replaced and not added to, so that an authority that is taken out of the file is trusted no more.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from sidecar.server.tls import load_authorities, load_pair, read_pair
from sidecar.transport import TLS

_CA_FLAG, _PAIR_FLAG = "--upstream-ca-file", "--upstream-client-cert-dir"

logger = logging.getLogger("sidecar.tls")


@dataclass(frozen=True, slots=True)
class Trust:
    """stages: those that are spoken to over TLS; of them `unverified` without verification.

    names: what a stage's certificates are for where that is not the host of the URL; sent as SNI too.
    ca_file: who signs them (None: the system's trust store). pair: the directory of the certificate that is
    shown to engines.
    """

    stages: frozenset[str] = frozenset()
    unverified: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    ca_file: Path | None = None
    pair: Path | None = None


class EngineTLS:
    """The contexts as they are now. Raises ValueError, which begins with the flag, for unusable files."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._seen = self._files()
        self._contexts = self._made(self._seen)

    def secures(self, stage: str) -> bool:
        """Whether the engines of a stage are spoken to over TLS."""
        return stage in self._contexts

    def towards(self, stage: str) -> TLS:
        """What they are spoken to with. Raises KeyError for a stage without TLS."""
        return TLS(self._contexts[stage], self._trust.names.get(stage))

    async def keep_up(self, interval_s: float) -> None:
        """Look at the files that often, until cancelled. What cannot be used is logged; the old one stays."""
        while self._trust.stages and (self._trust.ca_file or self._trust.pair):
            await asyncio.sleep(interval_s)
            try:
                await asyncio.to_thread(self._renew)
            except ValueError as error:
                logger.error("what is used towards engines stays: %s", error)

    def _renew(self) -> None:
        files = self._files()
        if files == self._seen:
            return
        self._seen = files  # also when it cannot be used: said once
        self._contexts = self._made(files)
        logger.info("certificates towards engines loaded")

    def _files(self) -> tuple[bytes, bytes]:
        """The authorities and the pair; b"" for what there is not."""
        trust = self._trust
        if not trust.stages:
            return b"", b""
        authorities = (
            _tried(f"{_CA_FLAG}: {trust.ca_file}", trust.ca_file.read_bytes) if trust.ca_file else b""
        )
        pair = _tried(f"{_PAIR_FLAG}: {trust.pair}", partial(read_pair, trust.pair)) if trust.pair else b""
        return authorities, pair

    def _made(self, files: tuple[bytes, bytes]) -> dict[str, ssl.SSLContext]:
        return {stage: self._context(stage, *files) for stage in sorted(self._trust.stages)}

    def _context(self, stage: str, authorities: bytes, pair: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._trust.ca_file:
            _tried(f"{_CA_FLAG}: {self._trust.ca_file}", partial(load_authorities, context, authorities))
        else:
            context.load_default_certs()
        if stage in self._trust.unverified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if pair:
            _tried(f"{_PAIR_FLAG}: {self._trust.pair}", partial(load_pair, context, pair))
        return context


T = TypeVar("T")


def _tried(what: str, call: Callable[[], T]) -> T:
    """What the call returns. Raises ValueError that begins with `what`."""
    try:
        return call()
    except OSError as error:  # ssl.SSLError is one too
        raise ValueError(f"{what}: {error}") from error
