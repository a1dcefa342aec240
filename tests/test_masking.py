"""What is taken out of answers that repeat a credential."""

from __future__ import annotations

import pytest

from sidecar.masking import credentials, masked


@pytest.mark.parametrize(
    ("headers", "said", "left"),
    [
        ({"authorization": "Bearer t0p"}, "denied: Bearer t0p", "denied: ***"),
        ({"Authorization": "Bearer t0p"}, "token t0p is old", "token *** is old"),
        ({"x-api-key": "k-1"}, "key k-1", "key ***"),
        ({"cookie": "a=1; session=0123456789ab"}, "session=0123456789ab?", "***?"),
        ({"x-gateway-token": "0123456789abcdef"}, "no 0123456789abcdef", "no ***"),
        ({"authorization": 'x "y'}, '{"message":"x \\"y"}', '{"message":"***"}'),
        ({"x-tenant": "default"}, "model default", "model default"),
        ({"authorization": "Basic"}, "say more than Basic", "say more than ***"),
        ({}, "anything", "anything"),
    ],
)
def test_credentials_are_masked_and_nothing_else(headers: dict[str, str], said: str, left: str) -> None:
    assert masked(said.encode(), credentials(headers)).decode() == left
