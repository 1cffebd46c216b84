"""Reading control messages of others: JSON that anybody may have sent."""

from dataclasses import fields
from typing import Any

from engine.contract.control import M, from_json
from engine.contract.errors import FrameError


def read(kind: type[M], data: bytes) -> M:
    """A message of that kind whose numbers are numbers and whose texts are texts. Raises FrameError."""
    message = from_json(kind, data)
    for field in fields(message):
        value: Any = getattr(message, field.name)
        if field.type in (int, str) and type(value) is not field.type:
            raise FrameError(f"{kind.__name__}.{field.name} is {value!r}")
    return message
