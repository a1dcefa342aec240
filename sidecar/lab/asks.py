"""Request bodies to `Ask`s: what each API's fields mean, and what vLLM refuses.

Rule: pure; every refusal is an `ApiError` in vLLM's words where they were seen.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidecar.lab.config import EngineConfig
from sidecar.lab.faults import INVALID, ApiError
from sidecar.lab.jobs import Job, Sampling
from sidecar.lab.kvparams import Directive, read_directive
from sidecar.lab.prompts import PROMPT_READERS, message_ids

Body = Mapping[str, object]

DEFAULT_COMPLETION_TOKENS = 16
"""Completions and generate without a limit; the other APIs go on until the context is full (vLLM 0.32)."""


@dataclass(frozen=True, slots=True)
class Api:
    """One generating API: id prefix, body fields of its limit (the first one set wins), default limit."""

    name: str
    id_prefix: str
    limit_fields: tuple[str, ...]
    default_tokens: int | None = None
    uses_request_id_header: bool = True


CHAT = Api("chat_completions", "chatcmpl-", ("max_completion_tokens", "max_tokens"))
COMPLETIONS = Api("completions", "cmpl-", ("max_tokens",), DEFAULT_COMPLETION_TOKENS)
RESPONSES = Api("responses", "resp_", ("max_output_tokens",), uses_request_id_header=False)
MESSAGES = Api("messages", "chatcmpl-", ("max_tokens",))
GENERATE = Api("vllm_generate", "generate-tokens-", ("max_tokens",), DEFAULT_COMPLETION_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One HTTP request: one job per prompt and choice, and how the answer is to be given."""

    api: Api
    id: str
    model: str
    fingerprint: str
    jobs: tuple[Job, ...]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    body: Body


def read_ask(api: Api, body: object, request_id: str | None, config: EngineConfig) -> Ask:
    """Validates a decoded body; raises ApiError. `request_id`: the client's x-request-id."""
    body = _known_model(body, config)
    _refuse_what_is_not_simulated(body)
    _refuse_earlier_response(api, body)
    tail = request_id if request_id and api.uses_request_id_header else uuid.uuid4().hex[:16]
    stream = body.get("stream") is True
    options = _stream_options(body, stream=stream)
    return Ask(
        api=api,
        id=f"{api.id_prefix}{tail}",
        model=config.model,
        fingerprint=config.fingerprint,
        jobs=_jobs(api, body, f"{api.id_prefix}{tail}", config),
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        return_token_ids=body.get("return_token_ids") is True,
        body=body,
    )


def count_message_tokens(body: object, config: EngineConfig) -> int:
    """Tokens of the prompt in a decoded body of /v1/messages/count_tokens; raises ApiError."""
    return len(message_ids(_known_model(body, config)))


def _known_model(body: object, config: EngineConfig) -> Body:
    if not isinstance(body, Mapping):
        raise ApiError("Input should be a valid dictionary", kind=INVALID, param="body")
    if body.get("model") not in (None, "", config.model):
        message = f"The model `{body['model']}` does not exist. Valid aliases: {config.model}."
        raise ApiError(message, status=404, kind="NotFoundError", param="model")
    return body


def _refuse_earlier_response(api: Api, body: Body) -> None:
    """vLLM keeps responses only when started to do so (VLLM_ENABLE_RESPONSES_API_STORE)."""
    earlier = body.get("previous_response_id")
    if api is RESPONSES and earlier is not None:
        message = f"Response with id '{earlier}' not found."
        raise ApiError(message, status=404, kind="invalid_request_error", param="response_id")


def _refuse_what_is_not_simulated(body: Body) -> None:
    for name in ("logprobs", "top_logprobs", "prompt_logprobs", "echo", "suffix", "use_beam_search"):
        if body.get(name):
            raise ApiError(f"{name} is not simulated by the embedded engine", param=name)


def _jobs(api: Api, body: Body, ask_id: str, config: EngineConfig) -> tuple[Job, ...]:
    prompts = PROMPT_READERS[api.name](body)
    options = _object(body, "sampling_params") if api is GENERATE else body
    asked = _whole(options, "n")
    choices = 1 if asked is None else asked
    if choices < 1:
        raise ApiError(f"n must be at least 1, got {choices}.", param="n")
    if choices > 1 and options.get("temperature") == 0:
        raise ApiError(f"n must be 1 when using greedy sampling, got {choices}.", param="n")
    directive = read_client_directive(body, config)
    jobs: list[Job] = []
    for i, prompt in enumerate(prompts):
        sampling = _sampling(api, options, len(prompt), config)
        for choice in range(choices):
            part = f"-{i * choices + choice}" if api is COMPLETIONS else ""
            jobs.append(
                Job(
                    request_id=f"{ask_id}{part}-{uuid.uuid4().hex[:8]}",
                    prompt=tuple(prompt),
                    sampling=sampling,
                    choice=choice,
                    # The further answers to a prompt find what the first one loaded.
                    kv=directive if choice == 0 else Directive(),
                    salt=str(body.get("cache_salt") or ""),
                )
            )
    return tuple(jobs)


def read_client_directive(body: Body, config: EngineConfig) -> Directive:
    """What `kv_transfer_params` ask for, or those in `vllm_xargs`, which vLLM takes where there are none."""
    params = body.get("kv_transfer_params")
    if params is not None and not isinstance(params, Mapping):
        where = "body.kv_transfer_params"
        detail = {
            "type": "dict_type",
            "loc": where,
            "msg": "Input should be a valid dictionary",
            "input": params,
        }
        raise ApiError(f"1 validation error:\n  {detail}", kind=INVALID, param=where)
    return read_directive(params or _object(_object(body, "vllm_xargs"), "kv_transfer_params"), config)


def _sampling(api: Api, options: Body, prompt_tokens: int, config: EngineConfig) -> Sampling:
    max_tokens = _limit(api, options, prompt_tokens, config)
    min_tokens = _whole(options, "min_tokens") or 0
    if min_tokens > max_tokens:
        message = f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}."
        raise ApiError(message, param="min_tokens")
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=options.get("ignore_eos") is True,
        stop=_stop_strings(options),
        stop_token_ids=tuple(i for i in _list(options, "stop_token_ids") if isinstance(i, int)),
    )


def _limit(api: Api, options: Body, prompt_tokens: int, config: EngineConfig) -> int:
    name, asked = api.limit_fields[-1], None
    for field in api.limit_fields:
        if (value := _whole(options, field)) is not None:
            name, asked = field, value
            break
    longest = config.max_model_len
    if asked is not None and asked < 1:
        raise ApiError(f"{name} must be at least 1, got {asked}.", param=name)
    if asked is not None and asked > longest:
        raise ApiError(
            f"{name}={asked} cannot be greater than max_model_len={longest}."
            f" Please request fewer output tokens. (parameter={name}, value={asked})",
            param=name,
        )
    wanted = asked or min(api.default_tokens or longest, max(1, longest - prompt_tokens))
    if prompt_tokens + wanted > longest:
        raise ApiError(
            f"This model's maximum context length is {longest} tokens. However, you requested {wanted} output"
            f" tokens and your prompt contains {prompt_tokens} input tokens, for a total of"
            f" {prompt_tokens + wanted} tokens."
            " Please reduce the length of the input prompt or the number of requested output tokens."
            f" (parameter=input_tokens, value={prompt_tokens})",
            param="input_tokens",
        )
    return wanted


def _stream_options(body: Body, *, stream: bool) -> Body:
    if body.get("stream_options") is not None and not stream:
        raise ApiError("Stream options can only be defined when `stream=True`.", param="stream_options")
    return _object(body, "stream_options")


def _stop_strings(options: Body) -> tuple[str, ...]:
    stop = options.get("stop", options.get("stop_sequences"))
    texts = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) and text for text in texts):
        raise ApiError("stop must be a string or an array of non-empty strings", param="stop")
    return tuple(texts)


def _whole(options: Body, name: str) -> int | None:
    value = options.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ApiError(f"{name} must be an integer", kind=INVALID, param=name)


def _object(body: Body, name: str) -> Body:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ApiError(f"{name} must be an object", kind=INVALID, param=name)
    return value


def _list(options: Body, name: str) -> Sequence[object]:
    value = options.get(name) or ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ApiError(f"{name} must be an array", kind=INVALID, param=name)
    return value
