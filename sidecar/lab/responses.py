"""The Responses API of vLLM 0.32: its whole answer, and the events of its stream.

Rule: pure; the object is the same in the answer and in the events, as far as it is known by then.
"""

from __future__ import annotations

from collections.abc import Iterator

from sidecar.lab.answers import Answered, Json, Spoken


def response_answer(answered: Answered) -> Json:
    """/v1/responses, finished."""
    one = answered.spoken[0]
    incomplete = one.finish_reason == "length"
    output = [output_item(answered, one.text, status="completed")]
    usage = {
        "input_tokens": answered.usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": answered.usage.cached_tokens,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": answered.usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": answered.usage.prompt_tokens + answered.usage.completion_tokens,
    }
    return _response(answered, output, usage) | {
        "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
        "status": "incomplete" if incomplete else "completed",
        "kv_transfer_params": one.kv_transfer_params,
    }


def opening_events(answered: Answered) -> Iterator[Json]:
    """Before the first text."""
    item = output_item(answered, None, status="in_progress")
    part: Json = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
    at = {"output_index": 0, "item_id": item["id"], "content_index": 0}
    yield {"type": "response.created", "response": _response(answered, [], None)}
    yield {"type": "response.in_progress", "response": _response(answered, [], None)}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield {"type": "response.content_part.added", **at, "part": part}


def text_event(answered: Answered, text: str) -> Json:
    """One piece of text."""
    at = {"output_index": 0, "item_id": _item_id(answered), "content_index": 0}
    return {"type": "response.output_text.delta", **at, "delta": text, "logprobs": []}


def closing_events(answered: Answered, spoken: Spoken) -> Iterator[Json]:
    """After the last text; the last one has the usage."""
    at = {"output_index": 0, "item_id": _item_id(answered), "content_index": 0}
    item = output_item(answered, spoken.text, status="completed")
    part: Json = {"annotations": [], "text": spoken.text, "type": "output_text", "logprobs": None}
    yield {"type": "response.output_text.done", **at, "text": spoken.text, "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    response = response_answer(answered)
    yield {"type": f"response.{response['status']}", "response": response}


def output_item(answered: Answered, text: str | None, *, status: str) -> Json:
    """The message in `output`; without text it has no content yet."""
    content: list[Json] = (
        [] if text is None else [{"annotations": [], "text": text, "type": "output_text", "logprobs": None}]
    )
    return {
        "id": _item_id(answered),
        "content": content,
        "role": "assistant",
        "status": status,
        "type": "message",
        "phase": None,
    }


def _item_id(answered: Answered) -> str:
    return answered.ask.id.replace("resp_", "msg_", 1)


def _response(answered: Answered, output: list[Json], usage: Json | None) -> Json:
    body = answered.ask.body
    return {
        "id": answered.ask.id,
        "created_at": answered.created_s,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata"),
        "model": answered.ask.model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "temperature": body.get("temperature", 1.0),
        "tool_choice": body.get("tool_choice", "none"),
        "tools": body.get("tools", []),
        "top_p": body.get("top_p", 1.0),
        "background": False,
        "max_output_tokens": answered.ask.jobs[0].sampling.max_tokens,
        "max_tool_calls": None,
        "previous_response_id": None,
        "prompt": None,
        "reasoning": None,
        "service_tier": "auto",
        "status": "in_progress",
        "text": None,
        "top_logprobs": None,
        "truncation": "disabled",
        "usage": usage,
        "user": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }
