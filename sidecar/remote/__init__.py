"""Engines, and sidecars in front of them, that a command line tool is given by URL.

Rule: HTTP only, over httpx's own client; every request has a bound.
"""

from sidecar.remote.client import Remote, Trust, connected
from sidecar.remote.errors import NoAnswer, Refused, RemoteError, Uncounted
from sidecar.remote.facts import Facts
from sidecar.remote.place import MalformedPlace, Place
from sidecar.remote.prompts import Answered, Directive, Prompt, by_body, by_header

__all__ = [
    "Answered",
    "Directive",
    "Facts",
    "MalformedPlace",
    "NoAnswer",
    "Place",
    "Prompt",
    "Refused",
    "Remote",
    "RemoteError",
    "Trust",
    "Uncounted",
    "by_body",
    "by_header",
    "connected",
]
