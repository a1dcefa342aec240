"""Decides which request heads are served.

Rule: pure; what llhttp 9 (httptools 0.9, strict) refuses is not repeated here, only what it lets through.
"""

import re
from typing import NamedTuple

Headers = list[tuple[bytes, bytes]]

CHUNKED = -1
"""A `body_length` that is only known at the end: the body is in chunks."""

# RFC 3986 3.2.2 and 3.2.3: the characters of `host [":" port]`; RFC 9112 3.2 asks for a 400 otherwise.
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*[ \t]*")
_ABSOLUTE = re.compile(rb"https?://([A-Za-z0-9._~!$&'()*+,;=%:\[\]-]+)(/[^#]*|\?[^#]*|)", re.IGNORECASE)
# One line each: with two, two readers of one head could differ (RFC 9112 3.2, 6.1, 6.3).
_SINGLE = (b"host", b"transfer-encoding", b"content-length")


class Refusal(Exception):
    """A request that is answered with `status` and `message`; the application never sees it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Head(NamedTuple):
    """An admitted request head. (A named tuple: made per request at a third of a frozen dataclass's price.)

    `headers` are as sent; `body_length` is in bytes, or CHUNKED.
    """

    method: bytes
    target: bytes
    http_version: str
    headers: Headers
    body_length: int
    expects_continue: bool
    wants_tunnel: bool


def admit(method: bytes, target: bytes, http_version: str, headers: Headers, *, upgrade: bool) -> Head:
    """Judge a whole request head; `upgrade` says that Connection names an Upgrade field.

    Raises Refusal (400, 417, 431).
    """
    if http_version not in ("1.1", "1.0"):
        # llhttp also takes 0.9 and 2.0 on a request line (RFC 9112 2.3).
        raise Refusal(400, "unsupported HTTP version")
    if method == b"CONNECT":
        raise Refusal(400, "CONNECT is not supported")
    last = {name.lower(): value for name, value in headers}
    if len(last) != len(headers):
        _refuse_doubles(headers)
    _check_host(last.get(b"host"), http_version)
    if target[:1] != b"/" or target.find(b"#") >= 0:  # without `in`, see framing.py
        target, headers = _plain_target(method, target, headers)
    body_length = _body_length(last, http_version)
    expects_continue = b"expect" in last and _expects_continue(headers, http_version)
    # RFC 6455 4.1: a WebSocket handshake is a GET, and it has no body that could be confused with frames.
    wants_tunnel = upgrade and method == b"GET" and not body_length and _names_websocket(headers)
    return Head(method, target, http_version, headers, body_length, expects_continue, wants_tunnel)


def head_bytes(target: bytes, headers: Headers) -> int:
    """Size of a request head as sent, give or take the white space around values."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers)


def _values(headers: Headers, name: bytes) -> list[bytes]:
    """All values of a field, without the white space that llhttp leaves behind them."""
    return [value.strip(b" \t") for each, value in headers if each.lower() == name]


def _refuse_doubles(headers: Headers) -> None:
    names = [name.lower() for name, _ in headers]
    for name in _SINGLE:
        if names.count(name) > 1:
            raise Refusal(400, f"several {name.decode()} fields")


def _check_host(host: bytes | None, http_version: str) -> None:
    if host is None:
        if http_version == "1.1":
            raise Refusal(400, "missing host field")
    elif _HOST.fullmatch(host) is None:
        raise Refusal(400, "invalid host field")


def _plain_target(method: bytes, target: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """Turn the absolute form into path and query, the authority replacing Host (RFC 9112 3.2.2).

    A fragment is refused: it is no part of a target, and engines would cut it off where routing did not.
    """
    if target == b"*" and method == b"OPTIONS":
        return target, headers
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise Refusal(400, "invalid request target")
    authority, path = absolute.groups()
    headers = [(name, authority if name.lower() == b"host" else value) for name, value in headers]
    return path if path[:1] == b"/" else b"/" + path, headers


def _body_length(last: dict[bytes, bytes], http_version: str) -> int:
    coding = last.get(b"transfer-encoding")
    if coding is None:
        return int(last.get(b"content-length", b"0"))
    if http_version == "1.0":
        raise Refusal(400, "transfer-encoding in HTTP/1.0")  # RFC 9112 6.1: such framing is faulty
    if coding.lower() != b"chunked":
        # `gzip, chunked` is legal but nothing here could decode it; `,chunked` passes llhttp.
        raise Refusal(400, "unsupported transfer-encoding")
    return CHUNKED


def _expects_continue(headers: Headers, http_version: str) -> bool:
    if [value.lower() for value in _values(headers, b"expect")] != [b"100-continue"]:
        raise Refusal(417, "unsupported expectation")
    return http_version == "1.1"  # RFC 9110 10.1.1: ignored from a 1.0 client


def _names_websocket(headers: Headers) -> bool:
    return [value.lower() for value in _values(headers, b"upgrade")] == [b"websocket"]
