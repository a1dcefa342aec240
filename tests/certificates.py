"""A certificate authority for tests: real certificates, for servers and clients, good ones and bad ones."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """Signs certificates. pem: its own, which is what others trust."""

    def __init__(self, name: str = "tests") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._own = self._build(self._name, self._key.public_key(), (-_DAY, 30 * _DAY), ca=True).sign(
            self._key, hashes.SHA256()
        )
        self.pem = self._own.public_bytes(serialization.Encoding.PEM)

    def _build(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        span: tuple[datetime.timedelta, datetime.timedelta],
        *,
        ca: bool = False,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + span[0])
            .not_valid_after(now + span[1])
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )

    def issue(self, *names: str, expired: bool = False) -> tuple[bytes, bytes]:
        """A certificate for these host names and addresses, and its key, PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        span = (-3 * _DAY, -_DAY) if expired else (-_DAY, 30 * _DAY)
        builder = self._build(_name(names[0]), key.public_key(), span)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general(name) for name in names]), critical=False
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), (
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def write(self, directory: Path, *names: str, expired: bool = False) -> Path:
        """The same as tls.crt and tls.key of a directory, which is made."""
        directory.mkdir(exist_ok=True)
        certificate, key = self.issue(*names, expired=expired)
        (directory / "tls.crt").write_bytes(certificate)
        (directory / "tls.key").write_bytes(key)
        return directory


def server_tls(directory: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """What a server with the pair of this directory serves with; client_ca: whose clients it demands."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context
