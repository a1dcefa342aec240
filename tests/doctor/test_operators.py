"""Asking a sidecar's metrics port: what it tells, read as it came."""

from __future__ import annotations

from sidecar.doctor.operators import operators_of
from sidecar.remote import Place, Trust
from tests.bombs import packed
from tests.engines import Answer, Got, scripted


async def test_packed_settings_are_not_asked_for_and_count_as_untold() -> None:
    async def script(got: Got, answer: Answer) -> None:
        if got.target == "/metrics":
            await answer.json(b"a 1\n")
        else:
            await packed("gzip, gzip")(got, answer)

    async with scripted(script) as port:
        told, failure = await operators_of(Place.parse(f"http://{port.netloc}"), Trust())
    assert (told is not None, failure) == (True, None)
    assert [got.target for got in port.requests] == ["/metrics", "/debug/events"]
    assert [got.all("accept-encoding") for got in port.requests] == [["identity"], ["identity"]]
