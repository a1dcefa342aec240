"""What of an httpx.Request goes on the wire, and what is refused."""

from collections.abc import AsyncIterator

import httpx
import pytest

from sidecar.transport.request import Outgoing, serialise

HOST = ("Host", "engine:8000")


class Streamed(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"never read here"


def post(
    *headers: tuple[str, str], body: bytes = b"", stream: httpx.AsyncByteStream | None = None
) -> Outgoing:
    request = httpx.Request(
        "POST",
        "http://engine:8000/v1/x?a=b",
        headers=[HOST, *headers],
        stream=stream or httpx.ByteStream(body),
    )
    return serialise(request)


def test_fields_go_out_verbatim_in_order_with_their_case_and_duplicates() -> None:
    headers = [
        (b"hOsT", b"engine"),
        (b"X-Dup", b"1"),
        (b"x-dup", b" 2 "),
        (b"X-Bytes", b"\xff\xfe\t"),
        (b"X-Empty", b""),
        (b"Content-Length", b"2"),
    ]
    request = httpx.Request(
        "POST", "http://engine/a%20b?q=%C3%BC", headers=headers, stream=httpx.ByteStream(b"{}")
    )
    assert serialise(request).parts == (
        b"POST /a%20b?q=%C3%BC HTTP/1.1\r\nhOsT: engine\r\nX-Dup: 1\r\nx-dup:  2 \r\nX-Bytes: \xff\xfe\t\r\n"
        b"X-Empty: \r\nContent-Length: 2\r\n\r\n",
        b"{}",
    )


@pytest.mark.parametrize("target", [b"//v1/x/./y?", b"*", b'/%zz?\xff"<>|#', b"http://other/absolute"])
def test_the_target_extension_replaces_the_urls_path_byte_for_byte(target: bytes) -> None:
    request = httpx.Request(
        "GET",
        "http://engine/other",
        headers=[HOST],
        stream=httpx.ByteStream(b""),
        extensions={"target": target},
    )
    assert serialise(request).parts == (b"GET %b HTTP/1.1\r\nHost: engine:8000\r\n\r\n" % target,)


def test_a_known_body_follows_the_head_uncopied() -> None:
    body = b"x" * 400_000
    head, sent = post(("Content-Length", "400000"), body=body).parts
    assert head.endswith(b"\r\n\r\n")
    assert sent is body


def test_no_body_and_no_framing_fields_means_none_are_invented() -> None:
    assert post().parts == (b"POST /v1/x?a=b HTTP/1.1\r\nHost: engine:8000\r\n\r\n",)


def test_an_empty_body_keeps_the_framing_it_was_given() -> None:
    (head,) = post(("content-length", "0")).parts
    assert head.endswith(b"content-length: 0\r\n\r\n")
    assert post(("Transfer-Encoding", "chunked")).parts[1:] == (b"0\r\n\r\n",)


def test_a_known_body_without_framing_fields_is_chunked() -> None:
    chunks = (b"3\r\n", b"abc", b"\r\n", b"0\r\n\r\n")
    head = b"POST /v1/x?a=b HTTP/1.1\r\nHost: engine:8000\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert post(body=b"abc").parts == (head, *chunks)
    given = post(("Transfer-Encoding", "Chunked"), body=b"abc").parts
    assert given == (head.replace(b"chunked", b"Chunked"), *chunks)


def test_a_streamed_body_without_framing_fields_is_chunked() -> None:
    outgoing = post(stream=Streamed())
    assert outgoing.parts == (
        b"POST /v1/x?a=b HTTP/1.1\r\nHost: engine:8000\r\nTransfer-Encoding: chunked\r\n\r\n",
    )
    assert outgoing.streamed is not None
    assert outgoing.streamed.length_bytes is None
    assert not outgoing.streamed.expects_continue


def test_a_streamed_body_keeps_the_length_and_the_expectation_it_was_given() -> None:
    outgoing = post(("content-LENGTH", "15"), ("expect", "100-Continue"), stream=Streamed())
    assert outgoing.parts[0].endswith(b"content-LENGTH: 15\r\nexpect: 100-Continue\r\n\r\n")
    assert outgoing.streamed is not None
    assert outgoing.streamed.length_bytes == 15
    assert outgoing.streamed.expects_continue


def test_it_is_noticed_that_a_request_is_a_head_or_ends_its_connection() -> None:
    head = serialise(httpx.Request("HEAD", "http://engine/", headers=[HOST]))
    assert (head.to_head, head.closes) == (True, False)
    last = post(("Connection", "keep-alive, Close"))
    assert (last.to_head, last.closes) == (False, True)


@pytest.mark.parametrize("evil", ["\r\nX-Evil: 1", "\n", "\r", "a\0b"])
def test_line_breaks_and_nuls_in_names_values_and_targets_are_refused(evil: str) -> None:
    with pytest.raises(httpx.LocalProtocolError, match="line break"):
        post(("X-Ok", "fine" + evil))
    with pytest.raises(httpx.LocalProtocolError, match="not a token"):
        post(("X-Ok" + evil, "fine"))
    for target in (b"/" + evil.encode(), b"/a b", b"/a\tb", b"", b"/\x7f"):
        request = httpx.Request("GET", "http://engine/", headers=[HOST], extensions={"target": target})
        with pytest.raises(httpx.LocalProtocolError, match="target"):
            serialise(request)


@pytest.mark.parametrize("name", ["", " X", "X ", "X:", "Ü", "a b", "(x)"])
def test_a_name_that_is_not_a_token_is_refused(name: str) -> None:
    request = httpx.Request("GET", "http://engine/", headers=[HOST])
    request.headers = httpx.Headers([(name.encode("utf-8"), b"x")])
    with pytest.raises(httpx.LocalProtocolError, match="not a token"):
        serialise(request)


@pytest.mark.parametrize("method", ["", "GE T", "GET\r\n", "CONNECT", "GÉT"])
def test_a_method_that_cannot_be_sent_is_refused(method: str) -> None:
    with pytest.raises(httpx.LocalProtocolError, match="method"):
        serialise(httpx.Request(method, "http://engine/", headers=[HOST]))


@pytest.mark.parametrize(
    "headers",
    [
        (("Content-Length", "3"), ("Transfer-Encoding", "chunked")),
        (("Content-Length", "3"), ("content-length", "3")),
        (("Content-Length", "3, 3"),),
        (("Content-Length", "+3"),),
        (("Content-Length", ""),),
        (("Transfer-Encoding", "gzip"),),
        (("Transfer-Encoding", "gzip, chunked"),),
        (("Transfer-Encoding", "chunked"), ("transfer-encoding", "chunked")),
        (("Content-Length", "2"),),
        (("Content-Length", "4"),),
    ],
)
def test_framing_that_contradicts_itself_or_the_body_is_refused(headers: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(httpx.LocalProtocolError):
        post(*headers, body=b"abc")


def test_a_body_that_only_a_synchronous_client_could_read_is_refused() -> None:
    class Synchronous(httpx.SyncByteStream):
        pass

    with pytest.raises(TypeError, match="AsyncByteStream, not Synchronous"):
        serialise(httpx.Request("POST", "http://engine/", headers=[HOST], stream=Synchronous()))


def test_the_request_itself_is_left_as_it_was() -> None:
    request = httpx.Request("POST", "http://engine/", headers=[HOST], stream=httpx.ByteStream(b"abc"))
    assert serialise(request) == serialise(request)
    assert request.headers.raw == [(b"Host", b"engine:8000")]
