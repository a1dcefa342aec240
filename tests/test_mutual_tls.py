"""TLS towards engines and clients by certificates of an authority of one's own, with real handshakes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sidecar import app, stages
from sidecar.engine_tls import EngineTLS, Trust
from tests.certificates import Authority, server_tls
from tests.commands import command
from tests.engines import ScriptedEngine, complete, prefilled, scripted
from tests.serving import PREFILLER, Said, Served, post, read_answer, serving

WEBSOCKET = (
    b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority()
    (tmp_path / "ca.pem").write_bytes("# Größe\n".encode() + made.pem)  # bundles have comments in any script
    return made


@pytest.fixture(autouse=True)
def _poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_CERT_POLL_S", 0.02)


@asynccontextmanager
async def secure_engine(pair: Path, client_ca: Path | None = None) -> AsyncIterator[ScriptedEngine]:
    async with scripted(complete, tls=server_tls(pair, client_ca)) as engine:
        yield engine


async def settled(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.005)


# Towards engines.


@pytest.mark.parametrize(
    ("names", "expired", "signed", "wrong"),
    [
        (("localhost",), False, True, None),
        (("elsewhere.test",), False, True, "Hostname mismatch"),
        (("localhost",), True, True, "certificate has expired"),
        (("localhost",), False, False, "its certificate is not accepted"),
    ],
    ids=["good", "of another host", "expired", "of an authority that is not in the file"],
)
async def test_the_decoder_is_verified_by_the_authorities_in_the_file(
    names: tuple[str, ...],
    expired: bool,
    signed: bool,
    wrong: str | None,
    authority: Authority,
    tmp_path: Path,
) -> None:
    signer = authority if signed else Authority()
    pair = signer.write(tmp_path / "pair", *names, expired=expired)
    flags = ("--enable-tls=decoder", f"--upstream-ca-file={tmp_path / 'ca.pem'}")
    async with secure_engine(pair) as engine, serving(engine.port, *flags) as sidecar:
        if wrong is None:
            assert (await sidecar.post()).status == 200
            return
        for answer in (await sidecar.post(), await sidecar.ask(WEBSOCKET)):
            assert answer.status == 502
            message = answer.json["message"]
            assert message.startswith(f"no TLS session with the decode engine at localhost:{engine.port}: ")
            assert wrong in message
        assert engine.requests == []


async def test_a_decoder_without_tls_is_said_to_be_that() -> None:
    def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as engine:
        port = engine.sockets[0].getsockname()[1]
        async with serving(port, "--enable-tls=decoder") as sidecar:
            answers = (await sidecar.post(), await sidecar.ask(WEBSOCKET))
    said = f"no TLS session with the decode engine at localhost:{port}: wrong version number"
    assert [(answer.status, answer.json["message"]) for answer in answers] == [(502, said)] * 2


async def test_the_file_replaces_the_systems_authorities_and_skipping_verification_still_skips(
    tmp_path: Path, authority: Authority
) -> None:
    pair = Authority().write(tmp_path / "pair", "elsewhere.test")
    flags = (
        "--enable-tls=decoder",
        "--tls-insecure-skip-verify=decoder",
        "--secure-serving=false",
        f"--upstream-ca-file={tmp_path / 'ca.pem'}",
    )
    async with secure_engine(pair) as engine, serving(engine.port, *flags) as sidecar:
        assert (await sidecar.post()).status == 200
    tls = EngineTLS(Trust(frozenset({"decoder"}), ca_file=tmp_path / "ca.pem"))
    assert len(tls.towards("decoder").context.get_ca_certs()) == 1


async def test_an_engine_reached_by_address_is_asked_for_the_name_in_its_certificate(
    tmp_path: Path, authority: Authority
) -> None:
    asked: list[str | None] = []
    context = server_tls(authority.write(tmp_path / "pair", "prefill.ns.svc"))
    context.sni_callback = lambda connection, name, of: asked.append(name)
    ca = f"--upstream-ca-file={tmp_path / 'ca.pem'}"
    flags = ("--enable-tls=prefiller", ca, "--upstream-server-name=prefiller=prefill.ns.svc")
    async with scripted(prefilled, tls=context) as prefiller, scripted() as decoder:
        async with serving(decoder.port, *flags) as sidecar:
            assert (await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])).status == 200
        async with serving(decoder.port, "--enable-tls=prefiller", ca) as sidecar:
            assert (await sidecar.post(headers=[(PREFILLER, prefiller.netloc)])).status == 502
    assert asked == ["prefill.ns.svc", None]
    assert (len(prefiller.requests), len(decoder.requests)) == (1, 1)


@pytest.mark.parametrize(
    ("shown", "status"), [("good", 200), ("none", 502), ("of another authority", 502), ("expired", 502)]
)
async def test_an_engine_that_demands_a_certificate_is_shown_ours(
    shown: str, status: int, tmp_path: Path, authority: Authority
) -> None:
    pair = authority.write(tmp_path / "engine", "localhost")
    signer = Authority() if shown == "of another authority" else authority
    ours = signer.write(tmp_path / "ours", "sidecar", expired=shown == "expired")
    flags = ["--enable-tls=decoder", f"--upstream-ca-file={tmp_path / 'ca.pem'}"]
    flags += [] if shown == "none" else [f"--upstream-client-cert-dir={ours}"]
    async with secure_engine(pair, tmp_path / "ca.pem") as engine, serving(engine.port, *flags) as sidecar:
        assert (await sidecar.post()).status == status
        assert len(engine.requests) == (status == 200)


async def test_what_is_used_towards_engines_is_read_again_and_an_old_authority_is_forgotten(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    authority: Authority,
) -> None:
    monkeypatch.setattr(stages, "_ENGINE_IDLE_S", 0.5)
    caplog.set_level(logging.INFO, "sidecar.tls")
    new = Authority()
    old_pair, new_pair = authority.write(tmp_path / "a", "localhost"), new.write(tmp_path / "b", "localhost")
    ours = authority.write(tmp_path / "ours", "sidecar")
    (tmp_path / "new.pem").write_bytes(new.pem)
    flags = (
        "--enable-tls=decoder,prefiller",
        f"--upstream-ca-file={tmp_path / 'ca.pem'}",
        f"--upstream-client-cert-dir={ours}",
    )
    async with (
        secure_engine(old_pair) as old_engine,
        secure_engine(new_pair, tmp_path / "new.pem") as new_engine,
        serving(new_engine.port, *flags) as sidecar,
    ):
        of_old = [(PREFILLER, f"localhost:{old_engine.port}")]
        assert (await sidecar.post()).status == 502
        assert (await sidecar.post(headers=of_old)).status == 502  # asked, and then the decoder
        assert len(old_engine.requests) == 1

        new.write(ours, "sidecar")
        (tmp_path / "ca.pem").write_bytes(b"not a certificate")
        await settled(lambda: "what is used towards engines stays: --upstream-ca-file: " in caplog.text)
        (tmp_path / "ca.pem").write_bytes(new.pem)
        await settled(lambda: "certificates towards engines loaded" in caplog.text)

        assert (await sidecar.post()).status == 200
        await asyncio.sleep(0.05)
        assert (await sidecar.post(headers=of_old)).status in (200, 502)
        await old_engine_idle(old_engine)
        assert (await sidecar.post(headers=of_old)).status == 502


async def old_engine_idle(engine: ScriptedEngine) -> None:
    """Until the connection from before, which keeps what it was opened with, has been idle for long."""
    async with asyncio.timeout(8):
        while engine.open:
            await asyncio.sleep(0.02)


async def test_a_websocket_and_a_look_at_counters_use_the_same_certificates(
    tmp_path: Path, authority: Authority
) -> None:
    pair = authority.write(tmp_path / "engine", "vllm.test")
    ours = authority.write(tmp_path / "ours", "sidecar")
    flags = (
        "--enable-tls=decoder",
        f"--upstream-ca-file={tmp_path / 'ca.pem'}",
        f"--upstream-client-cert-dir={ours}",
        "--upstream-server-name=decoder=vllm.test",
        "--kv-connector=offloading",
        "--pull-verification=on",
    )
    async with secure_engine(pair, tmp_path / "ca.pem") as engine, serving(engine.port, *flags) as sidecar:
        await engine.came()
        assert engine.last.target == "/metrics"
        assert (await sidecar.ask(WEBSOCKET)).status == 200  # what this engine answers to anything
        assert engine.last.target == "/v1/realtime"


# Towards clients.


def client_context(authority: Authority, pair: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.pem.decode())
    if pair is not None:
        context.load_cert_chain(pair / "tls.crt", pair / "tls.key")
    return context


async def ask(sidecar: Served, context: ssl.SSLContext, name: str | None = None) -> Said | None:
    """The answer to a POST on a fresh connection; None for a client that is refused."""
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", sidecar.port, ssl=context, server_hostname=name or "127.0.0.1"
        )
    except (ssl.SSLError, ConnectionError):
        return None
    try:
        writer.write(post())
        return await read_answer(reader)
    except (ssl.SSLError, ConnectionError, ValueError):  # ValueError: nothing came to be read
        return None
    finally:
        writer.transport.abort()


@asynccontextmanager
async def demanding(tmp_path: Path, authority: Authority, *flags: str) -> AsyncIterator[Served]:
    """A sidecar that demands certificates of the authority."""
    pair = authority.write(tmp_path / "serving", "127.0.0.1", "sidecar.test")
    given = ("--secure-serving", f"--cert-path={pair}", f"--client-ca-file={tmp_path / 'ca.pem'}", *flags)
    async with scripted() as engine, serving(engine.port, *given) as sidecar:
        yield sidecar


@pytest.mark.parametrize(
    ("shown", "served"),
    [("good", True), ("none", False), ("of another authority", False), ("expired", False)],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", [None, "sidecar.test"], ids=["without SNI", "with SNI"])
async def test_clients_need_a_certificate_of_the_authority(
    shown: str, served: bool, version: ssl.TLSVersion, name: str | None, tmp_path: Path, authority: Authority
) -> None:
    signer = Authority() if shown == "of another authority" else authority
    pair = signer.write(tmp_path / "client", "client", expired=shown == "expired")
    context = client_context(authority, None if shown == "none" else pair)
    context.maximum_version = version
    async with demanding(tmp_path, authority) as sidecar:
        said = await ask(sidecar, context, name)
        assert (said is not None and said.status == 200) is served


async def test_an_authority_of_clients_that_goes_is_trusted_no_more_and_a_new_one_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, authority: Authority
) -> None:
    caplog.set_level(logging.INFO, "sidecar.server")
    new = Authority()
    old_client = client_context(authority, authority.write(tmp_path / "old", "client"))
    new_client = client_context(authority, new.write(tmp_path / "new", "client"))
    async with demanding(tmp_path, authority) as sidecar:
        reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port, ssl=old_client)
        assert await ask(sidecar, new_client) is None
        (tmp_path / "ca.pem").write_bytes(b"nonsense")
        await settled(lambda: "not usable, the old ones stay" in caplog.text)
        assert await ask(sidecar, old_client) is not None
        (tmp_path / "ca.pem").write_bytes(new.pem)
        await settled(lambda: "certificate and authorities of clients loaded" in caplog.text)
        assert await ask(sidecar, old_client) is None
        assert await ask(sidecar, new_client) is not None
        writer.write(post())  # the open connection goes on
        assert (await read_answer(reader)).status == 200
        writer.transport.abort()


async def test_the_serving_certificate_is_renewed_while_clients_are_demanded_one_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, authority: Authority
) -> None:
    caplog.set_level(logging.INFO, "sidecar.server")
    client = authority.write(tmp_path / "client", "client")
    other = Authority()
    async with demanding(tmp_path, authority) as sidecar:
        assert await ask(sidecar, client_context(authority, client)) is not None
        assert await ask(sidecar, client_context(other, client)) is None
        other.write(tmp_path / "serving", "127.0.0.1")
        await settled(lambda: "certificate and authorities of clients loaded" in caplog.text)
        assert await ask(sidecar, client_context(other, client)) is not None


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--enable-tls=decoder", "--upstream-ca-file={}/bad.pem"), "--upstream-ca-file: "),
        (("--secure-serving", "--client-ca-file={}/bad.pem"), "--client-ca-file: "),
        (("--enable-tls=decoder", "--upstream-client-cert-dir={}/bad"), "--upstream-client-cert-dir: "),
    ],
)
async def test_a_file_that_cannot_be_used_refuses_to_start_in_one_line(
    flags: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.pem").write_bytes(b"no certificate")
    Authority().write(tmp_path / "bad", "a")
    (tmp_path / "bad" / "tls.key").write_bytes(b"no key")
    given = [flag.format(tmp_path) for flag in flags]
    async with command(tmp_path, 9, "--workers=2", *given, plain=False, ready=False) as sidecar:
        assert await sidecar.ended() == 2
        assert sidecar.log.startswith(f"sidecar: {reason}")
        assert sidecar.log.count("\n") == 1
