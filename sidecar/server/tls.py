"""The certificate and TLS settings that clients are served with.

Rule: names and defaults are those of the peer's Go flags; a private key made here never touches a disk.
"""

import asyncio
import datetime
import ipaddress
import logging
import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from sidecar.settings.tls_names import CIPHER_SUITES, MIN_VERSIONS, TLS13_SUITES

RELOAD_INTERVAL_S = 10.0
"""Seconds between two looks at the certificate files: the kubelet itself takes up to a minute to renew a
mounted secret, and certificates are renewed days before they end."""

_LIFETIME_DAYS = 3650  # as the peer's self-signed certificate (Go, x509.Certificate NotAfter: ten years)
_RSA_BITS = 2048  # NIST SP 800-57: good beyond 2030; the peer's 4096 would cost a second of every start

logger = logging.getLogger("sidecar.server")


def serving_context(
    cert_path: Path | None,
    min_version: str,
    cipher_suites: Sequence[str],
    pod_ip: str | None,
    *,
    flag: str = "--cert-path",
) -> ssl.SSLContext:
    """The context to serve with: `cert_path/tls.crt` and `tls.key`, or, without a path, a self-signed pair.

    `min_version` and `cipher_suites` take Go's names; `flag` gave the path.
    Raises ValueError that begins with the flag's name.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    if min_version not in MIN_VERSIONS:
        known = " or ".join(MIN_VERSIONS)
        raise ValueError(f"--tls-min-version: unknown version {min_version!r}, not {known}")
    context.minimum_version = ssl.TLSVersion[MIN_VERSIONS[min_version]]
    suites = _openssl_names(cipher_suites)
    if suites:
        context.set_ciphers(":".join(suites))
    elif cipher_suites:
        # Only suites of TLS 1.3 are named, so nothing older can be agreed on.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if cert_path is None:
        if pod_ip and not _is_address(pod_ip):
            raise ValueError(f"POD_IP: {pod_ip!r} is not an IP address")
        ecdsa_only = bool(suites) and all("ECDSA" in name for name in suites)
        load_pair(context, _self_signed(pod_ip, rsa_key=not ecdsa_only))
        return context
    try:
        load_pair(context, read_pair(cert_path))
    except OSError as error:  # ssl.SSLError is one too
        raise ValueError(f"{flag}: {cert_path}: {error}") from error
    return context


async def reload_on_change(
    context: ssl.SSLContext, cert_path: Path, interval_s: float = RELOAD_INTERVAL_S
) -> None:
    """Give `context` the certificate in `cert_path` anew whenever it changes; runs until cancelled.

    Connections keep what they were opened with. A pair that cannot be used is logged, and the old one stays.
    Contents are compared, not times: Kubernetes swaps a symlink above the files, others write in place.
    OpenSSL keeps one certificate per kind of key: after a change from RSA to ECDSA both are served.
    """
    seen = b""
    while True:
        await asyncio.sleep(interval_s)
        try:
            pem = await asyncio.to_thread(read_pair, cert_path)
        except OSError as error:
            logger.error("certificate not read, the old one stays: %s", error)
            continue
        if pem == seen:
            continue
        try:
            load_pair(context, pem)
        except OSError as error:
            logger.error("certificate not usable, the old one stays: %s: %s", cert_path, error)
        else:
            # The first pass cannot know what was there when the context was made, so it only makes sure.
            logger.log(logging.INFO if seen else logging.DEBUG, "certificate loaded: %s", cert_path)
        seen = pem


def read_pair(cert_path: Path) -> bytes:
    """Certificate chain and key in one piece. Raises OSError."""
    return (cert_path / "tls.crt").read_bytes() + b"\n" + (cert_path / "tls.key").read_bytes()


def load_authorities(context: ssl.SSLContext, pem: bytes) -> None:
    """Trust the authorities in `pem`, comments and all. Raises OSError, for none too."""
    with os.fdopen(os.memfd_create("authorities"), "wb") as file:
        file.write(pem)
        file.flush()
        context.load_verify_locations(cafile=f"/proc/self/fd/{file.fileno()}")


def load_pair(context: ssl.SSLContext, pem: bytes) -> None:
    """Load certificate and key into a context, which stays as it was if they do not fit. Raises OSError."""
    with os.fdopen(os.memfd_create("serving-certificate"), "wb") as file:
        file.write(pem)
        file.flush()
        path = f"/proc/self/fd/{file.fileno()}"
        # OpenSSL replaces the certificate before it looks at the key: try on a context that nobody uses. The
        # empty password makes an encrypted key an error, and not a question on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, password="")
        context.load_cert_chain(path, password="")


def _self_signed(pod_ip: str | None, *, rsa_key: bool) -> bytes:
    """A certificate with its key, PEM, for localhost, the loopback addresses and `pod_ip`."""
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if rsa_key:
        key = rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sidecar")])
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    for address in ("127.0.0.1", "::1", pod_ip):
        if address:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # An hour back: a client's clock may be behind.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_LIFETIME_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _openssl_names(cipher_suites: Sequence[str]) -> list[str]:
    """OpenSSL's names of the suites up to TLS 1.2. Raises ValueError for a name Go does not know."""
    for name in cipher_suites:
        if name not in CIPHER_SUITES and name not in TLS13_SUITES:
            raise ValueError(f"--tls-cipher-suites: unknown cipher suite {name!r}")
    return [CIPHER_SUITES[name] for name in cipher_suites if name in CIPHER_SUITES]
