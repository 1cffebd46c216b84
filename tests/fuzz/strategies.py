"""What somebody may send by mistake or on purpose."""

import json
from typing import Any

import orjson
from hypothesis import strategies as st

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 65), 1 << 65)
    | st.sampled_from([0, -1, 1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, ...]]:
    """Ways to every value inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way for key, inner in items for way in ((key,), *((key, *rest) for rest in places(inner)))]


@st.composite
def changed(draw: st.DrawFn, whole: bytes) -> bytes:
    """JSON in which one or two values are others, or missing."""
    found = orjson.loads(whole)
    for _ in range(draw(st.integers(1, 2))):
        if not (ways := places(found)):
            break
        way = draw(st.sampled_from(ways))
        at = found
        for key in way[:-1]:
            at = at[key]
        if draw(st.booleans()):
            at[way[-1]] = draw(VALUES)
        else:
            del at[way[-1]]
    return as_json(found)


def as_json(value: Any) -> bytes:
    """Numbers of any size, which JSON allows and orjson does not write."""
    return json.dumps(value).encode()


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes with some overwritten, the first hundred most of all: there the numbers are."""
    data = bytearray(whole)
    last = len(data) - 1
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(last, 100)) | st.integers(0, last))
        data[at : at + 4] = draw(
            st.binary(min_size=1, max_size=4) | st.sampled_from([b"\xff" * 4, bytes(4), b"\0\0\0\x80"])
        )
    return bytes(data)
