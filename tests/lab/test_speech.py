"""Text as it grows, with stop strings."""

from __future__ import annotations

from sidecar.lab.speech import Speech
from sidecar.lab.tokens import encode


def spoken(text: str, *stop: str) -> tuple[list[str], str | None]:
    speech, said = Speech(stop), []
    ids = encode(text)
    for i, token_id in enumerate(ids, 1):
        speech.hear(token_id)
        said.append(speech.say(last=i == len(ids) or speech.stopped_by is not None))
        if speech.stopped_by is not None:
            break
    return said, speech.stopped_by


def test_without_stop_strings_every_token_is_said_at_once() -> None:
    assert spoken(" bab dod fuf") == ([" bab", " dod", " fuf"], None)


def test_a_stop_string_ends_the_text_and_is_not_said() -> None:
    assert spoken(" bab dod fuf gag", "dod") == ([" b", "ab "], "dod")


def test_a_stop_string_across_tokens_is_found() -> None:
    said, stopped_by = spoken(" bab dod fuf", "b d")
    assert ("".join(said), stopped_by) == (" ba", "b d")


def test_what_could_become_a_stop_string_is_held_back_until_it_cannot() -> None:
    said, stopped_by = spoken(" bab dod fuf", "dodo")
    assert said == [" ", "bab ", "dod fuf"]
    assert stopped_by is None


def test_the_first_of_two_stop_strings_counts() -> None:
    said, stopped_by = spoken(" bab dod", "ab", "ba")
    assert ("".join(said), stopped_by) == (" ", "ba")
