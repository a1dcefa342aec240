#!/bin/sh
# Start this pod's ranks. vLLM numbers ranks over all pods and adds a rank's number to the base ports of the P2P tier
# and of KV events; peers and the endpoint picker know a rank by its place within its pod. So a pod's base ports are
# lowered by the number of its first rank, and rank r of every pod has its tier on 7777 + r, its events on 5556 + r.
set -eu
first=$(( ${LWS_WORKER_INDEX:?} * RANKS_PER_POD ))
p2p=$(( P2P_PORT - first ))
events=$(( KV_EVENTS_PORT - first ))
set -- vllm serve deepseek-ai/DeepSeek-V3.1 \
    --port="$ENGINE_PORT" \
    --block-size=64 \
    --enable-prompt-tokens-details \
    --enable-expert-parallel \
    --tensor-parallel-size=1 \
    --data-parallel-size=$(( ${LWS_GROUP_SIZE:?} * RANKS_PER_POD )) \
    --data-parallel-size-local="$RANKS_PER_POD" \
    --data-parallel-start-rank="$first" \
    --data-parallel-address="${LWS_LEADER_ADDRESS:?}" \
    --data-parallel-rpc-port=5555 \
    --data-parallel-multi-port-external-lb \
    --kv-transfer-config="{\"kv_connector\":\"OffloadingConnector\",\"kv_role\":\"kv_both\",\"kv_connector_extra_config\":{\"spec_name\":\"TieringOffloadingSpec\",\"cpu_bytes_to_use\":$KV_TIER_BYTES,\"offload_prompt_only\":false,\"secondary_tiers\":[{\"type\":\"p2p\",\"host\":\"$POD_IP\",\"port\":$p2p}]}}" \
    --kv-events-config="{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:$events\",\"topic\":\"kv@$POD_IP:8000@deepseek-ai/DeepSeek-V3.1\"}"
if [ -n "${TRACES_ENDPOINT:-}" ]; then set -- "$@" --otlp-traces-endpoint="$TRACES_ENDPOINT"; fi
if [ "${PRINT_ONLY:-}" = 1 ]; then printf '%s\n' "$@"; exit; fi
exec "$@"
