"""Reads the hosts among the settings: addresses, names to look up, and names in certificates.

Rule: pure, and a refusal is a ValueError that holds the reason alone. What no name service can be asked for,
or no certificate be made out to, is refused here and not by what fails later.
"""

import ipaddress

from sidecar.endpoint import is_host_name

# In no host, though a zone (RFC 4007 section 11) could have them.
_NOWHERE = frozenset("/[],")
# What IDNA reads as the dot between labels (RFC 3490 section 3.1).
_DOTS = (".", "\u3002", "\uff0e", "\uff61")


def ip(text: str) -> str:
    """Return the address in its canonical spelling, without brackets."""
    address = _address(text.removeprefix("[").removesuffix("]"))
    if address is None:
        raise ValueError(f"{text!r} is not an IP address")
    return address


def host(text: str) -> str:
    """Return a host name or an address without brackets; "" passes (every interface, for a listener)."""
    name = text.removeprefix("[").removesuffix("]")
    if name and _address(name) is None and not _is_name(name):
        raise ValueError(f"{text!r} is not a host name or an IP address")
    return name


def stage_name(text: str) -> str:
    """Read `stage=name`, the name without brackets."""
    stage, equals, name = text.partition("=")
    if not equals or not name or any(letter.isspace() for letter in name):
        raise ValueError(f"{text!r} is not of the form stage=name")
    return f"{stage}={_certified(name)}"


def _certified(text: str) -> str:
    """Return a host that a certificate can be for: no zone, and no dot at its end (RFC 6066 section 3)."""
    name = host(text)
    if not name or name.endswith(_DOTS) or "%" in name:
        raise ValueError(f"{text!r} cannot be in a certificate")
    return name


def _address(text: str) -> str | None:
    """Its canonical spelling; None for what is no address."""
    if not text.isascii() or not text.isprintable() or " " in text or _NOWHERE.intersection(text):
        return None
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def _is_name(text: str) -> bool:
    """Whether it is a host name, be it one of other letters than ASCII's, which are looked up by IDNA."""
    try:
        return is_host_name(text.encode("idna").decode("ascii"))
    except UnicodeError:  # an empty label, one of over 63 octets, or letters that IDNA refuses
        return False
