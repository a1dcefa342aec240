"""JSON schemas of the custom resources that deploy/ uses, closed: a field that is not here is a fault.

No package ships these; they follow the API references (InferencePool v1:
gateway-api-inference-extension; LeaderWorkerSet v1: lws.sigs.k8s.io; PodMonitor and PrometheusRule v1:
prometheus-operator). Pod templates within are judged by Kubernetes' own schema.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def _object(required: str, **fields: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": fields,
    }


def _list(items: Schema, least: int = 1, most: int = 64) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _one_of(*values: str) -> Schema:
    return {"enum": list(values)}


_TEXT: Schema = {"type": "string", "minLength": 1}
_TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_COUNT: Schema = {"type": "integer", "minimum": 1}
_DURATION: Schema = {"type": "string", "pattern": r"^(\d+(ms|s|m|h|d))+$"}
_SELECTOR = _object("matchLabels", matchLabels=_TEXTS)
_ANY: Schema = {"type": "object"}

_INFERENCE_POOL = _object(
    "selector targetPorts endpointPickerRef",
    selector=_SELECTOR,
    targetPorts=_list(_object("number", number=_PORT), most=8) | {"uniqueItems": True},
    appProtocol=_one_of("http", "kubernetes.io/h2c"),
    endpointPickerRef=_object(
        "name",
        group={"type": "string"},
        kind=_TEXT,
        name=_TEXT,
        port=_object("number", number=_PORT),
        failureMode=_one_of("FailOpen", "FailClose"),
    ),
)
_WORKERS = _object(
    "leaderWorkerTemplate",
    replicas={"type": "integer", "minimum": 0},
    startupPolicy=_one_of("LeaderCreated", "LeaderReady"),
    leaderWorkerTemplate=_object(
        "workerTemplate size",
        size=_COUNT,
        restartPolicy=_one_of("RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"),
        workerTemplate=_ANY,
        leaderTemplate=_ANY,
    ),
)
_POD_MONITOR = _object(
    "selector podMetricsEndpoints",
    selector=_SELECTOR,
    podMetricsEndpoints=_list(
        _object(
            "port",
            port=_TEXT,
            path=_TEXT,
            interval=_DURATION,
            scheme=_one_of("http", "https", "HTTP", "HTTPS"),
        )
    ),
)
_RULES = _object(
    "groups",
    groups=_list(
        _object(
            "name rules",
            name=_TEXT,
            interval=_DURATION,
            rules=_list(
                _object(
                    "expr",
                    alert=_TEXT,
                    record=_TEXT,
                    expr=_TEXT,
                    labels=_TEXTS,
                    annotations=_TEXTS,
                    **{"for": _DURATION},
                )
            ),
        )
    ),
)


def _resource(spec: Schema) -> Schema:
    metadata = _object("name", name=_TEXT, labels=_TEXTS, annotations=_TEXTS)
    return _object(
        "apiVersion kind metadata spec", apiVersion=_TEXT, kind=_TEXT, metadata=metadata, spec=spec
    )


SCHEMAS: dict[tuple[str, str], Schema] = {
    ("inference.networking.k8s.io/v1", "InferencePool"): _resource(_INFERENCE_POOL),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): _resource(_WORKERS),
    ("monitoring.coreos.com/v1", "PodMonitor"): _resource(_POD_MONITOR),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _resource(_RULES),
}
