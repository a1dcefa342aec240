"""Requests that are malformed or that two readers could read as two requests, by what is wrong with them.

Rule: bytes only; what the server makes of them is asserted in test_admission.py, what an engine gets in
test_smuggling.py, and fuzzing starts from them.
"""

from __future__ import annotations

from sidecar.server.limits import ClientLimits

MAX_HEAD_BYTES = ClientLimits().header_bytes
TE = b"Transfer-Encoding: chunked"


def head(line: bytes, *fields: bytes, host: bytes | None = b"Host: a") -> bytes:
    lines = [line, *([host] if host is not None else []), *fields]
    return b"".join(each + b"\r\n" for each in lines) + b"\r\n"


def request(*fields: bytes, body: bytes = b"") -> bytes:
    return head(b"POST / HTTP/1.1", *fields) + body


REFUSED = {
    # Two opinions about where the body ends (RFC 9112 6.3).
    "length and chunks": request(b"Content-Length: 4", TE, body=b"0\r\n\r\n"),
    "chunks and length": request(TE, b"Content-Length: 4", body=b"0\r\n\r\n"),
    "two lengths": request(b"Content-Length: 3", b"Content-Length: 4", body=b"abcd"),
    "the same length twice": request(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
    "a list of lengths": request(b"Content-Length: 3, 3", body=b"abc"),
    "a signed length": request(b"Content-Length: +3", body=b"abc"),
    "a negative length": request(b"Content-Length: -3", body=b"abc"),
    "a hexadecimal length": request(b"Content-Length: 0x3", body=b"abc"),
    "an empty length": request(b"Content-Length:"),
    "a length in two words": request(b"Content-Length: 1 2", body=b"abc"),
    "a length beyond 64 bits": request(b"Content-Length: 18446744073709551617", body=b"a"),
    "gzip and chunked": request(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "chunked and gzip": request(b"Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n"),
    "chunked twice in a line": request(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "chunked twice in two lines": request(TE, TE, body=b"0\r\n\r\n"),
    "gzip and chunked in two lines": request(b"Transfer-Encoding: gzip", TE, body=b"0\r\n\r\n"),
    "an empty item before chunked": request(b"Transfer-Encoding: ,chunked", body=b"0\r\n\r\n"),
    "xchunked": request(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "identity": request(b"Transfer-Encoding: identity"),
    "an empty coding": request(b"Transfer-Encoding:", body=b"0\r\n\r\n"),
    "a quoted coding": request(b'Transfer-Encoding: "chunked"', body=b"0\r\n\r\n"),
    "a coding after a vertical tab": request(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"),
    "a coding with a parameter": request(b"Transfer-Encoding: chunked;q=1", body=b"0\r\n\r\n"),
    "chunks in HTTP/1.0": head(b"POST / HTTP/1.0", TE) + b"0\r\n\r\n",
    "another coding before an upgrade": request(
        b"Connection: upgrade", b"Upgrade: h2c", b"Transfer-Encoding: gzip", body=b"0\r\n\r\n"
    ),
    "a length with a no-break space": request(b"Content-Length: 3\xa0", body=b"abc"),
    "a length in other digits": request("Content-Length: \uff13".encode(), body=b"abc"),
    "a length with a semicolon": request(b"Content-Length: 3;", body=b"abc"),
    "a length with a form feed": request(b"Content-Length: 3\x0c", body=b"abc"),
    "a length with an exponent": request(b"Content-Length: 1e1", body=b"abcdefghij"),
    "a length with a comma": request(b"Content-Length: 3,", body=b"abc"),
    "a length and an empty coding": request(b"Content-Length: 3", b"Transfer-Encoding:", body=b"abc"),
    "chunked with a no-break space": request(b"Transfer-Encoding: \xa0chunked", body=b"0\r\n\r\n"),
    "chunked with a NUL": request(b"Transfer-Encoding: chunked\0", body=b"0\r\n\r\n"),
    "chunked with a form feed": request(b"Transfer-Encoding: chunked\x0c", body=b"0\r\n\r\n"),
    "chunked with a comma": request(b"Transfer-Encoding: chunked,", body=b"0\r\n\r\n"),
    "chunked and identity": request(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
    "a coding in a look-alike": request("Transfer-Encoding: \uff43hunked".encode(), body=b"0\r\n\r\n"),
    # Lines that other parsers end elsewhere (RFC 9112 2.2, 5.1, 5.2).
    "a folded field": request(b"X: a", b" b"),
    "a folded coding": request(b"Transfer-Encoding:", b" chunked", body=b"0\r\n\r\n"),
    "a bare LF after a field": b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "a bare LF after the request line": b"GET / HTTP/1.1\nHost: a\r\n\r\n",
    "bare LFs only": b"GET / HTTP/1.1\nHost: a\n\n",
    "a bare CR in a value": request(b"X: a\rContent-Length: 5"),
    "a space before the colon": request(b"Content-Length : 3", body=b"abc"),
    "a tab before the colon": request(b"Transfer-Encoding\t: chunked", body=b"0\r\n\r\n"),
    "a space before the first field": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "a NUL in a value": request(b"X: a\0b"),
    "a control character in a value": request(b"X: a\x01b"),
    "a NUL in a name": request(b"X\0: a"),
    "a field without a name": request(b": a"),
    "a field without a colon": request(b"X"),
    "a name with a bracket": request(b"X(a): b"),
    # Chunks (RFC 9112 7.1).
    "a chunk size that is no number": request(TE, body=b"x\r\nabc\r\n0\r\n\r\n"),
    "a chunk size with a sign": request(TE, body=b"+3\r\nabc\r\n0\r\n\r\n"),
    "a chunk size with 0x": request(TE, body=b"0x3\r\nabc\r\n0\r\n\r\n"),
    "a chunk size beyond 64 bits": request(TE, body=b"10000000000000003\r\nabc\r\n0\r\n\r\n"),
    "a space after a chunk size": request(TE, body=b"3 \r\nabc\r\n0\r\n\r\n"),
    "a chunk longer than its size": request(TE, body=b"3\r\nabcd\r\n0\r\n\r\n"),
    "a bare LF after a chunk size": request(TE, body=b"3\nabc\r\n0\r\n\r\n"),
    "a bare LF after a chunk": request(TE, body=b"3\r\nabc\n0\r\n\r\n"),
    "a bare LF in a chunk extension": request(TE, body=b"3;a\nabc\r\n0\r\n\r\n"),
    "a length among the trailers": request(TE, body=b"0\r\nContent-Length: 5\r\n\r\n"),
    "a coding among the trailers": request(TE, body=b"0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "an empty chunk size": request(TE, body=b"\r\nabc\r\n0\r\n\r\n"),
    "a chunk size of an extension only": request(TE, body=b";a=b\r\nabc\r\n0\r\n\r\n"),
    "a chunk size in other digits": request(TE, body="\uff13\r\nabc\r\n0\r\n\r\n".encode()),
    "a negative chunk size": request(TE, body=b"-3\r\nabc\r\n0\r\n\r\n"),
    "a chunk size with an underscore": request(TE, body=b"1_0\r\n" + bytes(16) + b"\r\n0\r\n\r\n"),
    "a tab before a chunk size": request(TE, body=b"\t3\r\nabc\r\n0\r\n\r\n"),
    "a bare CR after a chunk size": request(TE, body=b"3\rabc\r\n0\r\n\r\n"),
    "a bare CR in a chunk extension": request(TE, body=b"3;a\rb\r\nabc\r\n0\r\n\r\n"),
    "a chunk without its line end": request(TE, body=b"3\r\nabc0\r\n\r\n"),
    "a folded trailer": request(TE, body=b"0\r\nX: a\r\n b\r\n\r\n"),
    "a bare LF after the last chunk": request(TE, body=b"0\n\n"),
    # The request line (RFC 9112 3).
    "HTTP/2.0": head(b"GET / HTTP/2.0"),
    "HTTP/0.9 with a version": head(b"GET / HTTP/0.9"),
    "HTTP/0.9 without a version": b"GET /\r\n\r\n",
    "HTTP/1.2": head(b"GET / HTTP/1.2"),
    "an HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method in lower case": head(b"get / HTTP/1.1"),
    "an unknown method": head(b"BREW / HTTP/1.1"),
    "a tunnel to anywhere": head(b"CONNECT a:443 HTTP/1.1"),
    "a target without a slash": head(b"GET a HTTP/1.1"),
    "a fragment": head(b"GET /v1/chat/completions#x HTTP/1.1"),
    "a fragment after a host": head(b"GET http://a/v1#x HTTP/1.1"),
    "an asterisk that is no OPTIONS": head(b"GET * HTTP/1.1"),
    "another scheme": head(b"GET ftp://a/ HTTP/1.1"),
    "credentials in the target": head(b"GET http://user@a/ HTTP/1.1"),
    "no host in the target": head(b"GET http:/// HTTP/1.1"),
    "a raw high byte in the target": head(b"GET /\xff HTTP/1.1"),
    "a tab in the request line": b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "a NUL in the target": head(b"GET /\0 HTTP/1.1"),
    "a line break in the target": b"GET /a\r\nX HTTP/1.1\r\nHost: a\r\n\r\n",
    "a version in lower case": head(b"GET / http/1.1"),
    "a version with a space": head(b"GET / HTTP/1.1 x"),
    "a long version": head(b"GET / HTTP/1.10"),
    "a method with a slash": head(b"GE/T / HTTP/1.1"),
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40) + b"\r\n\r\n",
    # Host (RFC 9112 3.2).
    "no host": head(b"GET / HTTP/1.1", host=None),
    "two hosts": head(b"GET / HTTP/1.1", b"Host: b"),
    "two equal hosts": head(b"GET / HTTP/1.1", b"host: a"),
    "a host with a space": head(b"GET / HTTP/1.1", host=b"Host: a b"),
    "a host with a path": head(b"GET / HTTP/1.1", host=b"Host: a/b"),
    "a host with credentials": head(b"GET / HTTP/1.1", host=b"Host: u@a"),
    "a host with a high byte": head(b"GET / HTTP/1.1", host=b"Host: \xff"),
    "a list of hosts in HTTP/1.0": head(b"GET / HTTP/1.0", b"Host: b"),
}

OTHERWISE = {
    "a field of 64 KiB": (431, request(b"X: " + b"a" * MAX_HEAD_BYTES)),
    "many fields of 64 KiB in all": (431, request(*[b"X: " + b"a" * 60] * 1100)),
    "a target of 64 KiB": (431, head(b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1")),
    "an unknown expectation": (417, request(b"Expect: tea", b"Content-Length: 3", body=b"abc")),
    "two expectations": (417, request(b"Expect: 100-continue", b"Expect: tea")),
}

# Odd, and yet of one meaning: each is one request with this body.
SERVED = {
    "two spaces before the version": (b"POST /  HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", b"{}"),
    "line ends before the request line": (b"\r\n\r\n" + request(b"Content-Length: 2", body=b"{}"), b"{}"),
    "zeros before a length": (request(b"Content-Length: 0002", body=b"{}"), b"{}"),
    "spaces around a length": (request(b"Content-Length:\t 2 \t", body=b"{}"), b"{}"),
    "a coding in capitals": (request(b"TRANSFER-ENCODING: CHUNKED", body=b"2\r\n{}\r\n0\r\n\r\n"), b"{}"),
    "zeros before a chunk size": (request(TE, body=b"00002\r\n{}\r\n000\r\n\r\n"), b"{}"),
    "chunk extensions": (request(TE, body=b'1;a\r\n{\r\n1;b="c;d"\r\n}\r\n0;e\r\n\r\n'), b"{}"),
    "trailers": (request(TE, body=b"2\r\n{}\r\n0\r\nX-Prefiller-Host-Port: evil:1\r\n\r\n"), b"{}"),
    "a length that is named by connection": (
        request(b"Connection: content-length, host", b"Content-Length: 2", body=b"{}"),
        b"{}",
    ),
    "names with underscores": (request(b"Content_Length: 9", b"Content-Length: 2", body=b"{}"), b"{}"),
    "an upgrade that nobody wants": (
        request(b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: 2", body=b"{}"),
        b"{}",
    ),
    "an expectation": (request(b"Expect: 100-continue", b"Content-Length: 2", body=b"{}"), b"{}"),
    "an absolute target": (
        b"POST http://b/ HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
        b"{}",
    ),
}
