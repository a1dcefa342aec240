"""Serving TLS: certificates, their renewal, versions and suites."""

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from sidecar.server import tls, wire
from sidecar.server.asgi import Scope
from sidecar.server.client import Client
from sidecar.server.tls import reload_on_change, serving_context
from sidecar.server.tunnel import Upstream, tunnel
from tests.server.loopback import Stage, direct, get, post, serving, settled

RSA_SUITE = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
ECDSA_SUITE = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
HANDSHAKE_REFUSED = (ssl.SSLError, ConnectionResetError)
"""How a client sees it: asyncio's server does not always get its alert out."""


def trusting() -> ssl.SSLContext:
    """A client that takes any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def write_pair(directory: Path, pem: bytes) -> x509.Certificate:
    """Put a PEM certificate and its key into files of a directory, as a mounted secret has them."""
    certificate, mark, key = pem.partition(b"-----BEGIN PRIVATE KEY-----")
    (directory / "tls.crt").write_bytes(certificate)
    (directory / "tls.key").write_bytes(mark + key)
    return x509.load_pem_x509_certificate(certificate)


def default() -> ssl.SSLContext:
    """What is served with without any flag."""
    return serving_context(None, "VersionTLS12", [], None)


def new_pair() -> bytes:
    """A certificate and its key."""
    return tls._self_signed(None, rsa_key=False)


@asynccontextmanager
async def connected(
    stage: Stage, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A TLS connection to a stage."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port, ssl=context or trusting())
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def presented(stage: Stage, context: ssl.SSLContext | None = None) -> x509.Certificate:
    """The certificate that a stage presents."""
    async with connected(stage, context) as (_, writer):
        return x509.load_der_x509_certificate(
            writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        )


async def hello(client: Client) -> None:
    """Answers with the body or a greeting."""
    body = await client.read_body(1 << 26) or b"hello"
    client.start(200, [], body_length=len(body))
    client.write(bytes(body))
    client.finish()


async def test_the_self_signed_certificate_is_for_localhost_the_loopback_and_the_pod() -> None:
    context = serving_context(None, "VersionTLS12", [], "10.1.2.3")
    async with serving(direct(hello), context=context) as stage:
        certificate = await presented(stage)
        trust = ssl.create_default_context(
            cadata=certificate.public_bytes(serialization.Encoding.PEM).decode()
        )
        async with connected(stage, trust) as (reader, writer):
            for _ in range(2):
                writer.write(get())
                assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 OK\r\n")
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1", "10.1.2.3"]


async def test_a_large_body_passes_over_tls_and_the_scheme_is_https() -> None:
    schemes: list[str] = []
    body = bytes(range(256)) * 8000

    async def application(scope: Scope, receive: Any, send: Any) -> None:
        schemes.append(scope["scheme"])
        await direct(hello)(scope, receive, send)

    async with serving(application, context=default()) as stage, connected(stage) as (reader, writer):
        writer.write(post(body))
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(body)) == body
    assert schemes == ["https"]


async def test_a_certificate_is_served_from_files_and_renewed_on_a_live_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sidecar.server")
    first = write_pair(tmp_path, new_pair())
    context = serving_context(tmp_path, "VersionTLS12", [], None)
    async with serving(direct(hello), context=context) as stage, connected(stage) as (reader, writer):
        assert await presented(stage) == first
        reloading = asyncio.create_task(reload_on_change(context, tmp_path, 0.01))
        await asyncio.sleep(0.03)
        second = write_pair(tmp_path, new_pair())
        await settled(lambda: "certificate loaded" in caplog.text)
        assert await presented(stage) == second
        writer.write(get())  # the open connection goes on
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 OK\r\n")
        reloading.cancel()


async def test_a_renewal_that_swaps_a_symlink_is_seen(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        write_pair(tmp_path / name, new_pair())
    (tmp_path / "..data").symlink_to("old")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    context = serving_context(tmp_path, "VersionTLS12", [], None)
    async with serving(direct(hello), context=context) as stage:
        old = await presented(stage)
        reloading = asyncio.create_task(reload_on_change(context, tmp_path, 0.01))
        (tmp_path / "..tmp").symlink_to("new")
        (tmp_path / "..tmp").rename(tmp_path / "..data")
        await asyncio.sleep(0.05)
        assert await presented(stage) != old
        reloading.cancel()


@pytest.mark.parametrize("broken", ["missing", "nonsense", "mismatched"])
async def test_a_renewal_that_cannot_be_used_is_logged_and_the_old_one_stays(
    broken: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = write_pair(tmp_path, new_pair())
    context = serving_context(tmp_path, "VersionTLS12", [], None)
    async with serving(direct(hello), context=context) as stage:
        reloading = asyncio.create_task(reload_on_change(context, tmp_path, 0.01))
        match broken:
            case "missing":
                (tmp_path / "tls.key").unlink()
            case "nonsense":
                (tmp_path / "tls.crt").write_text("nonsense")
            case "mismatched":
                key = (tmp_path / "tls.key").read_bytes()
                write_pair(tmp_path, new_pair())
                (tmp_path / "tls.key").write_bytes(key)
        await settled(lambda: caplog.records)
        assert caplog.records[0].levelno == logging.ERROR
        assert await presented(stage) == old
        new = write_pair(tmp_path, new_pair())
        await asyncio.sleep(0.05)
        assert await presented(stage) == new
        assert not reloading.done()
        reloading.cancel()


async def test_versions_under_the_minimum_are_refused() -> None:
    context = serving_context(None, "VersionTLS13", [], None)
    old = trusting()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(direct(hello), context=context) as stage:
        with pytest.raises(HANDSHAKE_REFUSED):
            await presented(stage, old)
        await presented(stage)


@pytest.mark.parametrize(
    ("suites", "offered", "agreed"),
    [
        ([RSA_SUITE], "ECDHE-RSA-AES256-GCM-SHA384", True),
        ([RSA_SUITE], "ECDHE-RSA-AES128-GCM-SHA256", False),
        ([ECDSA_SUITE], "ECDHE-ECDSA-AES128-GCM-SHA256", True),
        ([ECDSA_SUITE, RSA_SUITE], "ECDHE-RSA-AES256-GCM-SHA384", True),
        (["TLS_AES_128_GCM_SHA256"], "ECDHE-RSA-AES256-GCM-SHA384", False),
    ],
)
async def test_only_the_suites_named_are_agreed_on(suites: list[str], offered: str, agreed: bool) -> None:
    client = trusting()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers(offered)
    async with serving(direct(hello), context=serving_context(None, "VersionTLS12", suites, None)) as stage:
        if agreed:
            async with connected(stage, client) as (_, writer):
                assert writer.get_extra_info("cipher")[0] == offered
        else:
            with pytest.raises(HANDSHAKE_REFUSED):
                await presented(stage, client)
        await presented(stage)  # TLS 1.3 always is


@pytest.mark.parametrize(
    ("version", "suites", "pod_ip", "message"),
    [
        ("VersionTLS11", [], None, "--tls-min-version: unknown version 'VersionTLS11'"),
        ("1.2", [], None, "--tls-min-version: "),
        ("VersionTLS12", ["ECDHE-RSA-AES256-GCM-SHA384"], None, "--tls-cipher-suites: unknown cipher suite"),
        ("VersionTLS12", [], "pod", "POD_IP: 'pod' is not an IP address"),
    ],
)
def test_names_that_mean_nothing_are_refused_by_flag(
    version: str, suites: list[str], pod_ip: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        serving_context(None, version, suites, pod_ip)


def test_files_that_cannot_be_served_are_refused_by_flag(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--cert-path: .*No such file"):
        serving_context(tmp_path, "VersionTLS12", [], None)
    write_pair(tmp_path, new_pair())
    key = serialization.load_pem_private_key((tmp_path / "tls.key").read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    (tmp_path / "tls.key").write_bytes(encrypted)
    with pytest.raises(ValueError, match="--cert-path: "):
        serving_context(tmp_path, "VersionTLS12", [], None)


async def test_a_client_that_leaves_over_tls_cancels_its_request() -> None:
    started = asyncio.Event()
    cancelled = asyncio.Event()

    async def application(client: Client) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with serving(direct(application), context=default()) as stage:
        async with connected(stage) as (_, writer):
            writer.write(get())
            await started.wait()
        await asyncio.wait_for(cancelled.wait(), 0.1)


async def test_a_dropped_answer_without_length_ends_without_a_close_notify() -> None:
    async def application(client: Client) -> None:
        client.start(200, [], body_length=None)
        client.write(b"data")
        await asyncio.sleep(0.01)
        client.drop()

    async with serving(direct(application), context=default()) as stage:
        loop = asyncio.get_running_loop()

        def ask() -> Exception | None:
            # A strict client: an end without close_notify is an error for it.
            with (
                socket.create_connection(("127.0.0.1", stage.port)) as plain,
                trusting().wrap_socket(plain, suppress_ragged_eofs=False) as sock,
            ):
                sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
                try:
                    while sock.recv(1000):
                        pass
                except OSError as error:
                    return error
            return None

        assert isinstance(await loop.run_in_executor(None, ask), ssl.SSLEOFError | ConnectionResetError)


async def test_a_refused_request_over_tls_is_answered_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LINGER_S", 0.05)
    async with serving(direct(hello), context=default()) as stage, connected(stage) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n\r\n" + get("/smuggled"))
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.count(b"HTTP/1.1") == 1


async def test_a_tunnel_works_for_a_client_over_tls() -> None:
    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        writer.write(await reader.readexactly(3))
        writer.close()

    listener = await asyncio.start_server(engine, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]

    async def application(client: Client) -> None:
        await tunnel(client, Upstream("127.0.0.1", port), b"GET / HTTP/1.1\r\n\r\n", lambda status: None)

    async with serving(direct(application), context=default()) as stage, connected(stage) as (reader, writer):
        writer.write(get("/", "Connection: upgrade", "Upgrade: websocket") + b"abc")
        assert (await reader.read()).endswith(b"\r\n\r\nabc")
    listener.close()
    await listener.wait_closed()


def test_a_reset_needs_both_words_of_linger() -> None:
    assert struct.unpack("ii", wire._RESET) == (1, 0)
