"""What goes wrong, in OpenAI's words: a status and an error object."""

from typing import Any, Final

from engine.contract.errors import ErrorCode, PromptError, ShardlineError

RETRY_OVERLOADED: Final = 2  # seconds: what a client is told to wait while every place is taken
RETRY_UNAVAILABLE: Final = 5  # seconds: and while a stage or the decoder is missing
INVALID: Final = "invalid_request_error"
_TYPES: Final = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "service_unavailable"}
_TABLE: Final[dict[ErrorCode, tuple[int, str]]] = {  # status and code; what is not here is a fault of ours
    ErrorCode.INVALID_PROMPT: (400, "invalid_value"),
    ErrorCode.UNKNOWN_FIELD: (400, "unknown_parameter"),
    ErrorCode.PROMPT_TOO_LONG: (400, "context_length_exceeded"),
    ErrorCode.TOO_LARGE: (413, "request_too_large"),
    ErrorCode.DUPLICATE_ID: (409, "duplicate_id"),
    ErrorCode.OVERLOADED: (429, "overloaded"),
    ErrorCode.DEADLINE_PASSED: (503, "deadline_passed"),
    ErrorCode.UNAVAILABLE: (503, "unavailable"),
}
_RETRY: Final = {429: RETRY_OVERLOADED, 503: RETRY_UNAVAILABLE}


class ApiError(ShardlineError):
    """An answer that is an error object. `param` names the field of the body that is wrong."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.retry_after = _RETRY.get(status) if retry_after is None else retry_after  # seconds

    @property
    def headers(self) -> dict[str, str]:
        """Headers that belong to the status."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return {**headers, "www-authenticate": "Bearer"} if self.status == 401 else headers

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = _TYPES.get(self.status, INVALID if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """A request that can never be answered as it is."""
    return ApiError(400, message, code=code, param=param)


def unavailable(message: str) -> ApiError:
    """A pipeline that does not serve right now."""
    return ApiError(503, message, code="unavailable")


def from_prompt_error(error: PromptError, names: dict[str, str]) -> ApiError:
    """A refusal of the prompt contract; `names`: what the body calls the fields that it calls otherwise."""
    status, code = _TABLE.get(error.code, (500, str(error.code)))
    root = error.field.partition(".")[0]
    param, message = error.field or None, str(error)
    if name := names.get(root):
        param, message = name + error.field[len(root) :], message.replace(f"'{root}'", f"'{name}'")
    return ApiError(status, message, code=code, param=param)
