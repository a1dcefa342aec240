"""Bodies that come encoded, and whose `kv_transfer_params` may go on (contract section 3)."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import BadRequest, RequestTooLarge, UnsupportedEncoding
from sidecar.intake import _decoded, _fresh_ids, screened
from sidecar.kvparams import Policy
from tests.connectors.play import PREFILLER, SOURCE, call_of, route_of

BODY = b'{"prompt":"' + b"tok " * 1000 + b'"}'
LIMIT_BYTES = 64 * 1024


def raw_deflate(content: bytes) -> bytes:
    """Deflate without the zlib frame, as some clients send it (RFC 9110 section 8.4.1.2, note)."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(content) + packer.flush()


PACKED = {
    b"gzip": gzip.compress(BODY, mtime=0),
    b"x-gzip": gzip.compress(BODY, mtime=0),
    b"GZip": gzip.compress(BODY, mtime=0),
    b" gzip ": gzip.compress(BODY, mtime=0),
    b"deflate": zlib.compress(BODY),
    b"Deflate": raw_deflate(BODY),
    b"identity": BODY,
}


def decoded(raw: bytes, encoding: bytes, limit_bytes: int = LIMIT_BYTES) -> bytes:
    return bytes(_decoded(raw, encoding, limit_bytes, "too large"))


@pytest.mark.parametrize(("encoding", "raw"), PACKED.items())
def test_an_encoded_body_is_decoded(encoding: bytes, raw: bytes) -> None:
    assert decoded(raw, encoding) == BODY


def test_several_gzip_members_are_one_body() -> None:
    # RFC 1952 section 2.2: a gzip file is a series of members; RFC 9110 section 8.4.1.3 takes it as it is.
    raw = gzip.compress(BODY[:500], mtime=0) + gzip.compress(BODY[500:], mtime=0)
    assert decoded(raw, b"gzip") == BODY


@pytest.mark.parametrize(
    "encoding", [b"br", b"compress", b"gzip, gzip", b"gzip,identity", b"x", b"utf-8", b"zstd"]
)
def test_an_encoding_that_cannot_be_read_is_said_to_be_unsupported(encoding: bytes) -> None:
    with pytest.raises(UnsupportedEncoding, match="content-encoding"):
        decoded(PACKED[b"gzip"], encoding)


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
@pytest.mark.parametrize(
    "damage",
    [lambda raw: b"", lambda raw: raw[:-1], lambda raw: raw[:20], lambda raw: raw + b"x", lambda raw: BODY],
)
def test_a_body_that_is_not_what_its_encoding_says_is_the_clients_fault(
    encoding: bytes, damage: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(BadRequest, match="content-encoding"):
        decoded(damage(PACKED[encoding]), encoding)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, raw_deflate])
def test_a_body_may_inflate_to_the_limit_and_not_a_byte_further(pack: Callable[[bytes], bytes]) -> None:
    encoding = b"gzip" if pack is gzip.compress else b"deflate"
    assert decoded(pack(b"x" * 1000), encoding, 1000) == b"x" * 1000
    with pytest.raises(RequestTooLarge):
        decoded(pack(b"x" * 1001), encoding, 1000)
    with pytest.raises(RequestTooLarge):
        decoded(pack(bytes(50_000_000)), encoding, 1000)


@settings(max_examples=100, deadline=None)
@given(raw=st.binary(max_size=40), encoding=st.sampled_from([b"gzip", b"deflate", b"identity", b""]))
def test_any_bytes_are_decoded_or_refused(raw: bytes, encoding: bytes) -> None:
    for text in (raw, PACKED[b"gzip"][:12] + raw, PACKED[b"deflate"][:3] + raw):
        try:
            assert len(decoded(text, encoding, 100)) <= 100 or encoding == b"identity"
        except (BadRequest, RequestTooLarge, UnsupportedEncoding):
            continue


# Ids


def test_every_request_gets_three_fresh_random_ids() -> None:
    ids = [_fresh_ids() for _ in range(200)]
    texts = [text for one in ids for text in (one.request, one.handoff, one.pull)]
    assert len(set(texts)) == 600
    for text in texts:
        assert (UUID(text).version, UUID(text).variant, str(UUID(text))) == (4, RFC_4122, text)


# Whose params go on

HOSTILE = b'{"prompt":"hi", "kv_transfer_params":{"remote_kv_source":"abc"}}'
HARMLESS = b'{"prompt":"hi", "kv_transfer_params":{"remote_decoder":{"kv_request_id":"k"}}}'
DECODER = route_of().decoder


def test_params_that_would_be_forwarded_are_screened() -> None:
    with pytest.raises(BadRequest, match="remote_kv_source"):
        screened(call_of(HOSTILE), Policy.VALIDATE, replaced=False)
    with pytest.raises(BadRequest, match="kv_transfer_params"):
        screened(call_of(HARMLESS), Policy.REJECT, replaced=False)
    assert screened(call_of(HARMLESS), Policy.VALIDATE, replaced=False).body.encode() == HARMLESS
    assert screened(call_of(HOSTILE), Policy.PASS, replaced=False).body.encode() == HOSTILE
    assert screened(call_of(HOSTILE), Policy.STRIP, replaced=False).body.encode() == b'{"prompt":"hi"}'


@pytest.mark.parametrize("policy", [Policy.VALIDATE, Policy.STRIP, Policy.PASS])
def test_params_that_the_sidecar_replaces_are_dropped_and_never_refused(policy: Policy) -> None:
    call = screened(call_of(HOSTILE), policy, replaced=True)
    legs = [call.prefill(PREFILLER, {"p": 1}, SOURCE), call.decode_after_prefill(DECODER, None)]
    legs.append(call.decode(DECODER, SOURCE))
    for leg in legs:
        assert b"abc" not in (leg.content or b"")


@pytest.mark.parametrize("replaced", [True, False])
def test_reject_refuses_the_clients_params_on_every_route(*, replaced: bool) -> None:
    with pytest.raises(BadRequest, match="kv_transfer_params"):
        screened(call_of(HARMLESS), Policy.REJECT, replaced=replaced)


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("replaced", [True, False])
def test_a_call_without_params_is_the_same_call_under_every_policy(policy: Policy, *, replaced: bool) -> None:
    call = call_of(b' {"prompt" : "hi"}')
    assert screened(call, policy, replaced=replaced) is call


def test_a_fork_does_not_repeat_the_ids_of_its_parent() -> None:
    _fresh_ids()
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.write(write_end, _fresh_ids().request.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_end, 36).decode() != _fresh_ids().request
    os.close(read_end)
    os.close(write_end)
