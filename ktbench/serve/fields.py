"""The fields of requests: what is honoured, what has no effect, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from ktbench.serve.errors import ApiError, invalid, unsupported

MOST_STOPS = 16
MOST_STOP_IDS = 1024
MOST_LOGPROBS = 20
_SEEDS = 1 << 63

_Number = Annotated[int, Meta(ge=1)]
_Stop = Annotated[str, Meta(min_length=1, max_length=256)]
_Likeliest = Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)]
_Id = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Bias = Annotated[float, Meta(ge=-100, le=100)]
_Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """`include_usage`: a last chunk with the counts of tokens; `continuous_usage_stats`: in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Common(Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of both endpoints. Null is as good as left out."""

    model: str
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: dict[_Id, _Bias] | None = None
    seed: Annotated[int, Meta(ge=-_SEEDS, le=_SEEDS - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[_Id], Meta(max_length=MOST_STOP_IDS)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class Completion(Common, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | _Id | list[_Id]]
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    echo: bool | None = None
    logprobs: _Likeliest | None = None


class ContentPart(Struct, kw_only=True):
    """A part of a message: text alone."""

    type: str
    text: str = ""


class Message(Struct, kw_only=True):
    """A message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    type: Literal["message"] | None = None
    name: str | None = None
    reasoning_content: str | None = None


class Chat(Common, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_tokens: _Number | None = None
    max_completion_tokens: _Number | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: _Effort | None = None
    logprobs: bool | None = None
    top_logprobs: _Likeliest | None = None


T = TypeVar("T", Completion, Chat)

# Fields that are known and not honoured, each with the values, besides null, that ask for nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "audio": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "priority": (0,),
    "prompt_logprobs": (),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
# Without effect whatever their value: they say who asks, what for, and what may be kept of it, and no answer changes.
_HINTS = (
    "cache_prompt",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
_ROLES = ("system", "developer", "user", "assistant")
_TEXTS = ("text", "input_text", "output_text")
# Fields of messages that clients send back with the answers they got; null and empty values say nothing.
_OF_MESSAGES = ("annotations", "audio", "function_call", "reasoning", "refusal", "tool_calls")
_MESSAGE_FIELDS = ("role", "content", "name", "reasoning_content")
_MESSAGE_HINTS = ("cache_control", "id", "status")


def parse(body: bytes, kind: type[T], most: int) -> T:
    """The request in a body. Raises ApiError, with the field that is wrong.

    Of a list with more than `most` items, which no request has room for, none is looked at.
    """
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", None, "invalid_json") from None
    if not isinstance(content, dict):
        raise ApiError(400, "the body must be a JSON object", None, "invalid_json")
    for name, value in content.items():
        if isinstance(value, list) and len(value) > most:
            why = f"{name}: has {len(value)} items, allowed are {most}"
            raise ApiError(400, why, name, "context_length_exceeded")
    try:
        asked = {name: value for name, value in content.items() if _is_asked(name, value)}
        return msgspec.convert(asked, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from None


def _is_asked(name: str, value: Any) -> bool:
    """Whether a field is to be read. Raises ApiError for one that cannot be honoured."""
    if name in _HINTS:
        return False
    if name not in _NEUTRAL:
        return True
    if value is None or value in _NEUTRAL[name]:
        return False
    allowed = ", ".join(msgspec.json.encode(one).decode() for one in (*_NEUTRAL[name], None))
    raise unsupported(name, f"is not supported, leave it out (allowed: {allowed})")


def _wrong(text: str) -> ApiError:
    """`Expected `int`, got `str` - at `$.max_tokens``."""
    what, _, where = text.replace("`", "").partition(" - at $")
    param = where.lstrip(".") or None
    if "unknown field" in what:
        name = what.rpartition(" ")[2]
        return ApiError(400, f"{name}: unknown field", name, "unknown_parameter")
    if "missing required field" in what:
        name = what.rpartition(" ")[2]
        return ApiError(400, f"{name}: is missing", name, "missing_required_parameter")
    return invalid(param, what[0].lower() + what[1:])


def plain_messages(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Roles and texts of a conversation, for a chat template, with names and reasoning where messages have them.

    Raises ApiError for what is not text.
    """
    return [_plain_message(one, f"messages[{number}]") for number, one in enumerate(messages)]


def _plain_message(content: Mapping[str, Any], where: str) -> dict[str, str]:
    read = {name: value for name, value in content.items() if name not in _MESSAGE_HINTS}
    for name in [*read]:
        if name in Message.__struct_fields__:
            continue
        if read.pop(name) or name not in _OF_MESSAGES:
            raise unsupported(f"{where}.{name}", f"is not supported, messages have {', '.join(_MESSAGE_FIELDS)}")
    try:
        one = msgspec.convert(read, Message)
    except msgspec.ValidationError as error:
        what, _, at = str(error).replace("`", "").partition(" - at $")
        raise invalid(f"{where}{at}", what[0].lower() + what[1:]) from None
    if one.role not in _ROLES:
        raise invalid(f"{where}.role", f"allowed are {', '.join(_ROLES)}")
    said = {"role": "system" if one.role == "developer" else one.role, "content": _text_of(one, where)}
    more = {"name": one.name, "reasoning_content": one.reasoning_content}
    return said | {name: value for name, value in more.items() if value}


def _text_of(one: Message, where: str) -> str:
    if one.content is None:
        raise invalid(f"{where}.content", "is missing")
    if isinstance(one.content, str):
        return one.content
    for number, part in enumerate(one.content):
        if part.type not in _TEXTS:
            raise unsupported(f"{where}.content[{number}]", f"{part.type} is not supported, only text is")
    return "\n".join(part.text for part in one.content)
