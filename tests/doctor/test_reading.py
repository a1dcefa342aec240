"""What engines and sidecars tell is read from their own shapes."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.doctor import reading
from sidecar.doctor.counted import Counted, counted, rise
from sidecar.doctor.told import Configuration, Families, Fingerprint, Source, Tier


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm-0.32.0-54080b21", Fingerprint("0.32.0", configuration="54080b21")),
        ("vllm-0.32.0+cpu-tp2-54080b21", Fingerprint("0.32.0+cpu", tensor=2, configuration="54080b21")),
        (
            "vllm-0.33.1-tp8-pp2-dp16-ep-0011aabb",
            Fingerprint("0.33.1", 8, 2, 16, experts=True, configuration="0011aabb"),
        ),
        ("vllm-0.32.0-dp2-nohash", Fingerprint("0.32.0", data=2, configuration="nohash")),
        ("our own words", None),
        (None, None),
        (7, None),
    ],
)
def test_a_fingerprint_tells_version_parallelism_and_hash(text: Any, expected: Fingerprint | None) -> None:
    assert reading.fingerprint(text) == expected


METRICS = """\
# HELP vllm:kv_offload_tiering_read_bytes_total Total bytes.
# TYPE vllm:kv_offload_tiering_read_bytes_total counter
vllm:cache_config_info{block_size="32",engine="0",user_specified_block_size="True"} 1.0
vllm:cache_config_info{block_size="32",engine="1",user_specified_block_size="True"} 1.0
vllm:kv_offload_tiering_chunk_queries_total{engine="0",tier="0:primary"} 7.0
vllm:kv_offload_tiering_chunk_queries_total{engine="1",tier="0:primary"} 1.0
vllm:kv_offload_tiering_chunk_queries_total{engine="1",tier="1:p2p"} 100.0
vllm:kv_offload_store_bytes_total{engine="0",model_name="m"} 3.2768e+04
vllm:kv_offload_store_bytes_created{engine="0",model_name="m"} 1.7e+09
"""


def test_names_of_metrics_tell_the_connectors_and_the_ranks() -> None:
    assert reading.families(METRICS) == Families(tiering=True, ranks=2)
    old = METRICS.replace("chunk_queries", "block_queries")
    assert reading.families(old) == Families(tiering=True, ranks=2, old_names=True)
    assert reading.families("# TYPE vllm:nixl_bytes_transferred histogram\n") == Families(nixl=True)
    assert reading.families("\n") == Families(untold=True)
    many = "".join(f'vllm:cache_config_info{{engine="{rank}"}} 1\n' for rank in range(999))
    assert reading.families(many).ranks == 64


@pytest.mark.parametrize("value", [10**400, 1e300, -1, float("inf"), float("nan"), True, "7", 0.5])
def test_a_size_that_none_can_have_is_not_told(value: Any) -> None:
    extra = {"cpu_bytes_to_use": value, "secondary_tiers": [{"type": "p2p", "port": value}]}
    told = reading.configuration(
        info({"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra})
    )
    assert told is not None
    assert (told.tier_bytes, told.tier) == (None, Tier())


@pytest.mark.parametrize(
    ("value", "told"), [(True, True), (False, False), ("false", None), (0, None), (None, None)]
)
def test_only_true_and_false_tell_whether_prompts_alone_are_kept(value: Any, told: bool | None) -> None:
    extra = {"offload_prompt_only": value}
    found = reading.configuration(
        info({"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra})
    )
    assert found is not None
    assert found.prompt_only is told


def test_counters_are_summed_over_ranks_and_taken_by_their_older_names_too() -> None:
    told = Counted(pulled_bytes=0.0, stored_bytes=32768.0, looked_up=8.0)
    assert counted(METRICS.encode()) == told
    old = METRICS.replace("chunk_queries", "block_queries").replace(
        "kv_offload_store_bytes_total{", 'kv_offload_total_bytes_total{transfer_type="GPU_to_CPU",'
    )
    assert counted(old.encode()) == told


def test_a_rise_is_zero_where_the_connector_counts_and_nothing_was_counted() -> None:
    before, after = Counted(stored_bytes=5.0), Counted(stored_bytes=9.0, looked_up=2.0)
    assert rise(before, after, tiering=True) == Counted(0.0, None, None, 0.0, 4.0, 2.0, 0.0)
    assert rise(before, after, tiering=False) == Counted(stored_bytes=4.0, looked_up=2.0)


def test_counters_that_fell_or_are_gone_say_nothing_and_why() -> None:
    before, after = Counted(stored_bytes=9.0, looked_up=2.0), Counted(stored_bytes=5.0)
    risen = rise(before, after, tiering=True)
    assert (risen.stored_bytes, risen.looked_up, risen.pulled_bytes) == (None, None, 0.0)
    assert risen.faults == {
        "stored_bytes": "vllm:kv_offload_store_bytes_total fell from 9 to 5",
        "looked_up": "vllm:kv_offload_tiering_chunk_queries_total is gone",
    }
    assert risen.of("looked_up", "pulled_bytes") == (risen.faults["looked_up"],)
    assert Counted(written_bytes=96.0, faults={"stored_bytes": "x"}).given_bytes is None
    huge = Counted(stored_bytes=1e308 * 10)
    assert list(rise(Counted(), huge, tiering=True).faults) == ["stored_bytes"]


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-5", "many"])
def test_a_sample_that_is_no_count_is_no_zero(value: str) -> None:
    spoilt = counted(METRICS.replace("3.2768e+04", value).replace(" 7.0", f" {value}").encode())
    risen = rise(counted(METRICS.encode()), spoilt, tiering=True)
    assert (risen.stored_bytes, risen.looked_up, risen.pulled_bytes) == (None, None, 0.0)
    assert risen.of("stored_bytes", "looked_up") == (
        f"vllm:kv_offload_store_bytes_total {value}",
        f"vllm:kv_offload_tiering_chunk_queries_total {value}",
    )


def test_of_metrics_that_came_empty_nothing_is_taken_for_zero() -> None:
    for before, after in ((b"", METRICS.encode()), (METRICS.encode(), b"")):
        risen = rise(counted(before), counted(after), tiering=True)
        assert risen == Counted(faults=risen.faults)
        assert risen.of("pulled_bytes") == ("/metrics gave nothing",)
    assert rise(counted(b""), counted(b""), tiering=False) == Counted()  # one that has no such connector


def test_what_was_given_is_what_was_written_for_peers_and_not_stored() -> None:
    assert Counted().given_bytes is None
    assert Counted(written_bytes=96.0, stored_bytes=32.0).given_bytes == 64.0
    assert Counted(written_bytes=32.0, stored_bytes=64.0).given_bytes == 0.0
    assert Counted(served_bytes=7.0, written_bytes=96.0).given_bytes == 7.0


OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 1e9,
        "secondary_tiers": [{"type": "fs"}, {"type": "p2p", "host": "10.0.0.1", "port": 7777}],
    },
}


def info(transfer: Any, **more: Any) -> dict[str, Any]:
    """An answer of /server_info."""
    config = {
        "model_config": {"model": "m", "revision": "abc", "dtype": "torch.bfloat16"},
        "cache_config": {"cache_dtype": "fp8"},
        "parallel_config": {
            "tensor_parallel_size": 4,
            "pipeline_parallel_size": 1,
            "data_parallel_size": 2,
        },
        "kv_transfer_config": transfer,
        **more,
    }
    return {"vllm_config": config, "vllm_env": {"VLLM_P2P_SIDE_CHANNEL_HOST": "localhost"}}


def test_a_configuration_tells_sizes_connectors_and_the_tier() -> None:
    expected = Configuration(
        revision="abc",
        dtype="bfloat16",
        tensor=4,
        pipeline=1,
        connectors=("OffloadingConnector",),
        tier=Tier("10.0.0.1", 7777),
        side_host="localhost",
        tier_bytes=1_000_000_000,
        prompt_only=True,  # not said: vLLM's default
        events=False,
    )
    assert reading.configuration(info(OFFLOADING)) == expected


def test_members_of_a_multi_connector_stand_for_it() -> None:
    members = {"connectors": [{"kv_connector": "NixlConnector"}, OFFLOADING]}
    multi = {"kv_connector": "MultiConnector", "kv_connector_extra_config": members}
    told = reading.configuration(info(multi, kv_events_config={"enable_kv_cache_events": True}))
    assert told is not None
    assert (told.connectors, told.tier, told.events) == (
        ("NixlConnector", "OffloadingConnector"),
        Tier("10.0.0.1", 7777),
        True,
    )


@pytest.mark.parametrize("content", [None, [], {"vllm_config": "VllmConfig(model='m')"}, {"error": "no"}])
def test_what_is_no_configuration_tells_nothing(content: Any) -> None:
    assert reading.configuration(content) is None


def test_an_engine_without_a_connector_has_none() -> None:
    told = reading.configuration(info(None))
    assert told is not None
    assert (told.connectors, told.tier, told.prompt_only) == ((), None, None)


SIDECAR = """\
llm_d_disagg_sidecar_guard_sources{state="good"} 3.0
llm_d_disagg_sidecar_guard_sources{state="bad"} 1.0
llm_d_disagg_sidecar_silent_sources 2.0
llm_d_disagg_sidecar_pull_rescues_total 0.0
llm_d_disagg_sidecar_pulls_total{outcome="moved"} 5.0
llm_d_disagg_sidecar_pulls_total{outcome="nothing"} 2.0
llm_d_disagg_sidecar_pulls_skipped_total{reason="source_unreachable"} 4.0
llm_d_disagg_sidecar_pulls_skipped_total{reason="source_is_self"} 0.0
"""


def test_a_sidecar_tells_its_sources_settings_and_what_it_left_out() -> None:
    hello = {
        "config": [{"name": "--kv-connector", "value": "offloading"}, {"name": "port", "value": 8000}, "x"],
        "sources": [{"source": "10.0.0.2:7777", "guard": "refuses", "silent": True}, None],
    }
    told = reading.sidecar_told(SIDECAR, hello)
    assert told.settings == {"kv-connector": "offloading", "port": "8000"}
    assert told.sources == (Source("10.0.0.2:7777", "refuses", True),)
    assert (told.bad_sources, told.silent_sources, told.rescues) == (1.0, 2.0, 0.0)
    assert told.skipped == {"source_unreachable": 4.0}
    assert reading.directed(SIDECAR) == 7.0
    assert reading.sidecar_told("", None).settings is None
