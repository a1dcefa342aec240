"""Asks the sidecar in this container whether it serves: the image's HEALTHCHECK, `python -m sidecar.health`.

Rule: port and TLS are read from the command line and the environment of process 1, so that the image needs no
setting of its own and takes the peer's arguments unchanged.
"""

import http.client
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sidecar.settings import Settings, SettingsError, load

_TIMEOUT_S = 3.0  # /health is answered from memory; a sidecar that needs longer is stuck


def serves(settings: Settings) -> bool:
    """Whether `GET /health` of the sidecar with these settings answers 200."""
    host = settings.host or "localhost"
    asked: http.client.HTTPConnection
    if settings.secure_serving:
        # It is asked whether it is alive, not who it is; its certificate is made out to the pod's address.
        trusting = ssl.create_default_context()
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE
        asked = http.client.HTTPSConnection(host, settings.port, timeout=_TIMEOUT_S, context=trusting)
    else:
        asked = http.client.HTTPConnection(host, settings.port, timeout=_TIMEOUT_S)
    try:
        asked.request("GET", "/health")
        return asked.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        asked.close()


def settings_of(process: Path) -> Settings:
    """The settings that a process (`/proc/<id>`) was started with. Raises OSError, SettingsError."""
    return load(_flags(_texts(process / "cmdline")), _environ(_texts(process / "environ")), warn=_quiet)


def _texts(file: Path) -> list[str]:
    return file.read_bytes().decode("utf-8", "surrogateescape").rstrip("\0").split("\0")


def _flags(words: Sequence[str]) -> list[str]:
    """The flags behind interpreter, program and command; a sidecar is started with nothing else."""
    first = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    return list(words[first:])


def _environ(pairs: Sequence[str]) -> Mapping[str, str]:
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _quiet(_: str) -> None:
    """The sidecar itself has warned."""


def main(process: Path = Path("/proc/1")) -> int:
    """0 when it serves, else 1."""
    try:
        return 0 if serves(settings_of(process)) else 1
    except (OSError, SettingsError) as refused:
        print(f"sidecar.health: {refused}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
