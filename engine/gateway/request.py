"""From the body of a request to the fields of a prompt, or to the reason why not. No I/O."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from engine.contract.errors import PromptError
from engine.contract.prompt import PromptRequest, prompt_from_fields
from engine.contract.sampling import MAX_TOP_LOGPROBS
from engine.gateway.errors import from_prompt_error, invalid
from engine.gateway.messages import read_messages

Body = Mapping[str, Any]
PASSED: Final = (  # the prompt contract has them under the same names and checks them
    *("temperature", "top_p", "top_k", "min_p", "seed", "n", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("response_format", "max_tokens", "ignore_eos", "draft", "draft_tokens", "priority", "deadline_ms"),
)
TOOLS: Final = ("tools", "tool_choice", "parallel_tool_calls")  # passed too
NEUTRAL: Final[Mapping[str, Callable[[Any], bool]]] = {  # values that change nothing about an answer
    "user": lambda value: isinstance(value, str),
    "safety_identifier": lambda value: isinstance(value, str),
    "prompt_cache_key": lambda value: isinstance(value, str),
    "metadata": lambda value: isinstance(value, dict),
    "store": lambda value: value is False,
    "service_tier": lambda value: value in ("auto", "default"),
    "modalities": lambda value: value == ["text"],
    "best_of": lambda value: type(value) is int and value == 1,
    "echo": lambda value: value is False,
    "suffix": lambda value: value == "",
}
UNSUPPORTED: Final = frozenset(  # OpenAI has them, we do not
    (
        *("audio", "prediction", "reasoning_effort", "verbosity", "web_search_options", "moderation"),
        *("functions", "function_call", "prompt_cache_retention"),
    )
)
CHAT_ONLY: Final = frozenset(["messages", "top_logprobs", "max_completion_tokens", "modalities", *TOOLS])
COMPLETION_ONLY: Final = frozenset(["prompt", "best_of", "echo", "suffix"])
COMMON: Final = frozenset([*PASSED, "model", "stop", "stream", "stream_options", "logprobs"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a body asks for."""

    model: str
    fields: dict[str, Any]  # of a prompt, checked by its contract; without an id
    names: dict[str, str]  # how the body calls fields that the contract calls otherwise
    stream: bool
    include_usage: bool
    request: PromptRequest

    @property
    def logprobs(self) -> bool:
        """Whether they are wanted."""
        return bool(self.request.sampling.get("logprobs"))

    @property
    def tools(self) -> frozenset[str]:
        """Names of those that the answer may call."""
        return frozenset(() if self.request.tool_choice.kind == "none" else (one.name for one in self.request.tools))


def read_body(data: bytes) -> Body:
    """The JSON object; nulls are left out, as if they were not there. Raises ApiError."""
    try:
        body: Any = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise invalid(None, f"the body is not JSON: {error}", "invalid_json") from error
    if not isinstance(body, dict):
        raise invalid(None, "the body must be a JSON object", "invalid_json")
    found = cast("Body", body)
    return {name: value for name, value in found.items() if value is not None}


def read_chat(body: Body) -> Asked:
    """A body for /v1/chat/completions. Raises ApiError naming the field."""
    _only_known(body, COMMON | CHAT_ONLY)
    fields = {name: body[name] for name in (*PASSED, *TOOLS, "logprobs", "top_logprobs") if name in body}
    fields["messages"] = read_messages(body.get("messages"))
    names: dict[str, str] = {}
    if "max_completion_tokens" in body:
        if body.get("max_tokens", body["max_completion_tokens"]) != body["max_completion_tokens"]:
            raise invalid("max_tokens", "'max_tokens' and 'max_completion_tokens' contradict each other: send one")
        fields["max_tokens"], names["max_tokens"] = body["max_completion_tokens"], "max_completion_tokens"
    return _asked(body, fields, names)


def read_completion(body: Body) -> Asked:
    """A body for /v1/completions. Raises ApiError naming the field."""
    _only_known(body, COMMON | COMPLETION_ONLY)
    fields = {name: body[name] for name in PASSED if name in body}
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):  # type: ignore[reportUnknownArgumentType]
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise invalid("prompt", "'prompt' must be one text: neither token ids nor several prompts a request are served")
    fields["prompt"] = prompt
    if "logprobs" in body:
        wanted = body["logprobs"]
        if isinstance(wanted, bool) or not isinstance(wanted, int) or not 0 <= wanted <= MAX_TOP_LOGPROBS:
            raise invalid("logprobs", f"'logprobs' must be a whole number from 0 to {MAX_TOP_LOGPROBS}")
        fields |= {"logprobs": True, "top_logprobs": wanted}
    return _asked(body, fields, {"top_logprobs": "logprobs"})


def _only_known(body: Body, known: frozenset[str]) -> None:
    for name, value in body.items():
        if name in UNSUPPORTED:
            raise invalid(name, f"{name!r} is not supported", "unsupported_parameter")
        if name in NEUTRAL and (name in known or name not in CHAT_ONLY | COMPLETION_ONLY):
            if not NEUTRAL[name](value):
                raise invalid(name, f"{name!r} is not supported with this value", "unsupported_value")
        elif name not in known:
            raise invalid(name, f"unknown field {name!r}; known are {', '.join(sorted(known))}", "unknown_parameter")


def _asked(body: Body, fields: dict[str, Any], names: dict[str, str]) -> Asked:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise invalid("model", "'model' must be the name of a model: see /v1/models", "missing_required_parameter")
    stream = body.get("stream", False)
    if not isinstance(stream, bool):
        raise invalid("stream", "'stream' must be true or false")
    if body.get("stop", []) != []:
        fields["stop"] = body["stop"]
    try:
        request = prompt_from_fields(fields)
    except PromptError as error:
        raise from_prompt_error(error, names) from error
    return Asked(
        model=model,
        fields=fields,
        names=names,
        stream=stream,
        include_usage=_include_usage(body, stream=stream),
        request=request,
    )


def _include_usage(body: Body, *, stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict) or not stream:
        raise invalid("stream_options", "'stream_options' must be an object, and needs 'stream' to be true")
    wanted = cast("Body", options)
    for name, value in wanted.items():
        if name == "include_obfuscation" and value is False:  # there is none
            continue
        if name == "continuous_usage_stats" and isinstance(value, bool):  # vLLM's; here sums come at the end
            continue
        if name != "include_usage" or not isinstance(value, bool):
            raise invalid(f"stream_options.{name}", f"'stream_options.{name}' is not supported with this value")
    return bool(wanted.get("include_usage"))
