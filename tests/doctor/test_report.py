"""How a diagnosis is written: as text within 80 columns, in colours, and as a document."""

from __future__ import annotations

import re
from dataclasses import replace

from sidecar.doctor.diagnosis import Diagnosis, Measured, diagnosed
from sidecar.doctor.document import document
from sidecar.doctor.gates import Shown
from sidecar.doctor.paint import coloured, cut, hung, padded, plain, size
from sidecar.doctor.pulls import Pair, Pull, Verdict
from sidecar.doctor.report import report
from sidecar.doctor.told import Alone, Configuration, Port
from sidecar.endpoint import Endpoint
from tests.doctor.made import told

MOVED = Pull(256, 256, 262144.0, 256.0, 262144.0, True, ttft_ms=20.0)
PAIRS = (
    Pair("A", "B", first=MOVED, again=replace(MOVED, ttft_ms=10.0)),
    Pair("B", "A", "B's P2P port 10.0.0.2:7777 is shut", Verdict.UNREACHABLE),
)

REPORT = """\
2 peers, 2 pairs, prompts of 257 tokens

  A  http://10.0.0.1:8000  engine, P2P 10.0.0.1:7777
  B  http://10.0.0.2:8000  engine, P2P 10.0.0.2:7777

                      A                 B
  reachable           yes, 0.5 ms       yes, 0.5 ms
  ready               yes               yes
  answers             yes               yes
  version             0.32.0            0.32.0
  parameter names     of 0.32           of 0.32
  model               m                 m
  revision            r1                r1
  block size          32 tokens         32 tokens
  prefix caching      on                on
  KV dtype            auto: bfloat16    auto: bfloat16
  parallel            TP 1              TP 1
  KV per token        1,024 bytes       1,024 bytes
  P2P port            open, 0.3 ms      shut
  DP ports            1 rank            1 rank
  offload_prompt_only false             false
  token details       on                off
  CPU tier            32.0 MiB, 2.0x    not told
  clock               as here           as here
  connector           offloading        offloading

Pulls: the peer of the row from the peer of the column
        A            B
  A     ·            unreachable
  B     moved        ·

  A to B   moved: 256 tokens of 256, 256.0 KiB; first token after 20.0 ms, the
           next time 10.0 ms, 25.0 MiB/s at least
  B to A   unreachable: B's P2P port 10.0.0.2:7777 is shut

Findings
  error    B        P2P port: nothing accepts at 10.0.0.2:7777 (connection
                    refused), so no engine was told of it; its configuration has
                    no P2P tier
                    → Give the P2P tier "host": the pod's address and "port":
                      7777 (else vLLM binds localhost:5710), open the port in
                      every NetworkPolicy, or name another: --p2p.
  warning  B        token details: does not report usage.prompt_tokens_details:
                    no answer tells what it took from a cache
                    → Start the engine with --enable-prompt-tokens-details.

Not told
  B                 CPU tier: its size: engines tell it with
                    VLLM_SERVER_DEV_MODE=1 only (GET /server_info)

Result: errors (exit code 3)"""


def made() -> Diagnosis:
    """Of a healthy peer and one with a shut port."""
    config = Configuration(revision="r1", dtype="bfloat16")
    alone = told().alone
    assert isinstance(alone, Alone)
    first = told("A", configuration=replace(config, tier_bytes=32 << 20))
    second = told(
        "B",
        configuration=config,
        ports=(Port(Endpoint("10.0.0.2", 7777), None, "connection refused"),),
        alone=replace(alone, details=False),
    )
    return diagnosed([first, second], Measured(PAIRS, 0, 257))


def test_a_report_is_aligned_and_within_80_columns() -> None:
    text = "\n".join(report(made(), plain))
    assert text == REPORT
    assert max(map(len, text.splitlines())) <= 80


def test_colours_change_no_column() -> None:
    text = "\n".join(report(made(), coloured))
    assert "\x1b[31merror\x1b[0m" in text
    assert "\x1b[32mmoved\x1b[0m" in text
    assert re.sub(r"\x1b\[\d+m", "", text) == REPORT


def test_many_peers_are_shown_in_parts() -> None:
    many = [told(chr(65 + at)) for at in range(9)]
    lines = list(report(diagnosed(many, Measured((Pair("A", "B", first=MOVED),), 71, 257)), plain))
    assert lines[0] == "9 peers, 1 pair (71 left out), prompts of 257 tokens"
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("  reachable") for line in lines) == 3


def test_gates_are_told_with_their_figures() -> None:
    shown = Shown(
        "A",
        "B",
        "",
        256,
        256.0,
        True,
        True,
        None,
        replace(MOVED, directed="10.0.0.1:7777"),
        Pull(256, 0, 0.0),
    )
    both = [told("A"), told("B")]
    lines = list(report(diagnosed(both, Measured((), 0, 257, shown)), plain))
    assert lines[0] == "2 peers, the gates of a pull from A to B, prompts of 257 tokens"
    at = lines.index("Gates")
    assert [line for line in lines[at + 1 :] if re.match(r"  \d  ", line)] == [
        "  1  pass      tokens reach the index",
        "  2  pass      the directive is logged",
        "  3  pass      the consumer's counter rises",
        "  4  pass      bytes move on the source",
        "  5  pass      the control moves nothing",
    ]


def test_a_document_has_every_finding_and_no_words_for_what_is_null() -> None:
    made_up = document(made())
    assert (made_up["worst"], made_up["exit_code"], made_up["pairs_left_out"]) == ("error", 3, 0)
    assert [peer["p2p_open"] for peer in made_up["peers"]] == [[True], [False]]
    assert made_up["pairs"][0]["bytes_per_s"] == 26214400.0
    assert made_up["pairs"][1] == {
        "source": "B",
        "consumer": "A",
        "verdict": "unreachable",
        "why": "B's P2P port 10.0.0.2:7777 is shut",
        "bytes_per_s": None,
        "first": None,
        "again": None,
    }
    assert {
        "severity": "ok",
        "check": "version",
        "about": ["A"],
        "value": "0.32.0",
        "says": "",
        "change": "",
    } in made_up["findings"]


def test_text_is_cut_padded_and_hung() -> None:
    assert (padded("ab", 4), padded("abcd", 4)) == ("ab  ", "abcd ")
    assert (cut("abcd", 4), cut("abcde", 4)) == ("abcd", "abc…")
    assert list(hung("  A  ", "one two-three four", 16)) == ["  A  one", "     two-three", "     four"]
    assert list(hung("  A  ", "", 16)) == ["  A"]
    assert coloured("no  ", "red") == "\x1b[31mno\x1b[0m  "
    assert [size(count) for count in (0, 1023, 1536, 3 << 20, 5 << 30)] == [
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.00 GiB",
    ]


def test_what_is_so_of_several_is_said_once() -> None:
    nothing = Pull(256, 0, 0.0, looked_up=True)
    pairs = (Pair("A", "B", first=nothing), Pair("B", "A", first=nothing))
    lines = list(report(diagnosed([told("A"), told("B")], Measured(pairs, 0, 257)), plain))
    at = lines.index("Findings")
    assert lines[at + 1] == "  error    A to B   pull (also B to A): 0 bytes, the source looked blocks up and"
    assert sum("PYTHONHASHSEED" in line for line in lines) == 1
