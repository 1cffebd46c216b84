"""Values of the contract from JSON that anybody may have written: each field has its type, or is named."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[str, Any], Any]
_WORDS: Final[Mapping[type, str]] = {int: "a whole number", str: "a text", bool: "true or false", NoneType: "null"}


def read(kind: type[T], found: Any, *, exactly: bool = False, place: str = "") -> T:
    """A dataclass from a JSON object. Raises TypeError that names the field: missing, or of another type.

    Fields that it does not have are passed over, or refused when it must be `exactly` these.
    """
    if not isinstance(found, dict):
        raise _wrong(place or kind.__name__, found, "an object")
    given: dict[str, Any] = found  # type: ignore[reportUnknownVariableType]
    readers, needed = _fields(kind)
    prefix = f"{place}." if place else ""
    if missing := next((name for name in needed if name not in given), ""):
        raise TypeError(f"{prefix}{missing} is missing")
    if exactly and (unknown := next((name for name in given if name not in readers), "")):
        raise TypeError(f"{prefix}{unknown} is not known")
    return kind(**{name: readers[name](f"{prefix}{name}", value) for name, value in given.items() if name in readers})


@cache
def _fields(kind: type[Any]) -> tuple[Mapping[str, Reader], tuple[str, ...]]:
    hints = get_type_hints(kind)
    needed = tuple(f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    return {f.name: _reader(hints[f.name]) for f in fields(kind)}, needed


def _reader(hint: Any) -> Reader:
    hint = getattr(hint, "__supertype__", hint)  # a NewType's
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda _, value: value
    if hint is float:
        return _float
    if is_dataclass(hint):
        return lambda place, value: read(hint, value, place=place)  # type: ignore[reportUnknownLambdaType]
    if origin in (Union, UnionType):
        return _either(inner)
    if origin is Literal:
        return _one_of(inner)
    if origin in (tuple, list):
        return _several(origin, inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(inner)
    return _exactly(hint)


def _exactly(kind: type) -> Reader:
    def check(place: str, value: Any) -> Any:
        if type(value) is not kind:
            raise _wrong(place, value, _WORDS.get(kind, kind.__name__))
        return value

    return check


def _float(place: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise _wrong(place, value, "a number")
    return float(value)


def _one_of(values: tuple[Any, ...]) -> Reader:
    def check(place: str, value: Any) -> Any:
        if value not in values:
            raise _wrong(place, value, f"one of {', '.join(map(str, values))}")
        return value

    return check


def _either(hints: tuple[Any, ...]) -> Reader:
    """The first that fits; null only where it is one of them."""
    readers = [_reader(hint) for hint in hints if hint is not NoneType]

    def check(place: str, value: Any) -> Any:
        if value is None and NoneType in hints:
            return None
        for reader in readers[:-1]:
            with suppress(TypeError):
                return reader(place, value)
        return readers[-1](place, value)

    return check


def _several(make: Callable[[list[Any]], Any], inner: tuple[Any, ...]) -> Reader:
    endless = make is list or inner[-1] is ...
    readers = [_reader(hint) for hint in inner if hint is not ...]

    def check(place: str, value: Any) -> Any:
        if not isinstance(value, list):
            raise _wrong(place, value, "a list")
        items: list[Any] = value  # type: ignore[reportUnknownVariableType]
        if endless:
            if inner[0] is int and set(map(type, items)) <= {int}:
                return make(items)  # many token ids, at once
            return make([readers[0](f"{place}[{at}]", item) for at, item in enumerate(items)])
        if len(items) != len(readers):
            raise _wrong(place, items, f"a list of {len(readers)}")
        return make(
            [reader(f"{place}[{at}]", item) for at, (reader, item) in enumerate(zip(readers, items, strict=True))]
        )

    return check


def _mapping(inner: tuple[Any, ...]) -> Reader:
    value_of = _reader(inner[1])

    def check(place: str, value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(place, value, "an object")
        found: dict[Any, Any] = value  # type: ignore[reportUnknownVariableType]
        return {key: value_of(f"{place}.{key}", item) for key, item in found.items()}

    return check


def _wrong(place: str, value: Any, expected: str) -> TypeError:
    return TypeError(f"{place} is {value!r:.80}, not {expected}")
