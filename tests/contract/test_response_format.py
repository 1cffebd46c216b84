import orjson
import pytest

from engine.contract.errors import ErrorCode, PromptError
from engine.contract.prompt import parse_prompt
from engine.contract.response_format import Choice, JsonObject, JsonSchema, Regex, ResponseFormat

SCHEMA = {"type": "object", "properties": {"z": {}, "a": {}}}


def parse(value: object) -> ResponseFormat | None:
    return parse_prompt(orjson.dumps({"prompt": "x", "response_format": value})).response_format


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonObject()),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
            JsonSchema('{"type":"object","properties":{"z":{},"a":{}}}'),
        ),
        ({"type": "regex", "regex": "[0-9]+"}, Regex("[0-9]+")),
        ({"type": "choice", "choices": ["yes", "no", "yes"]}, Choice(("yes", "no"))),
    ],
)
def test_every_format_is_read(value: object, wanted: ResponseFormat | None) -> None:
    assert parse(value) == wanted


def json_schema(**changes: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **changes}}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("json_object", "'response_format' must be an object"),
        ({}, "'response_format.type' must be one of text, json_object"),
        ({"type": "xml"}, "'response_format.type'"),
        ({"type": []}, "'response_format.type'"),
        ({"type": "text", "regex": "a"}, "unknown field 'regex' in 'response_format'; known are type"),
        ({"type": "json_object", "schema": {}}, "unknown field 'schema'"),
        ({"type": "json_schema"}, "'response_format.json_schema' must be an object"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "'response_format.json_schema.name'"),
        (json_schema(name="a b"), "'response_format.json_schema.name'"),
        (json_schema(schema=True), "'response_format.json_schema.schema' must be an object"),
        (json_schema(schema=None), "'response_format.json_schema.schema'"),
        (json_schema(strict="yes"), "'response_format.json_schema.strict'"),
        (json_schema(description=3), "'response_format.json_schema.description'"),
        (json_schema(stricter=True), "unknown field 'stricter' in 'response_format.json_schema'"),
        (json_schema(schema={"enum": ["x" * 70_000] * 2}), "at most 128 KiB"),
        ({"type": "regex"}, "'response_format.regex'"),
        ({"type": "regex", "regex": ""}, "'response_format.regex'"),
        ({"type": "regex", "regex": "a" * 4097}, "'response_format.regex'"),
        ({"type": "choice"}, "'response_format.choices'"),
        ({"type": "choice", "choices": []}, "'response_format.choices'"),
        ({"type": "choice", "choices": ["a", ""]}, "'response_format.choices'"),
        ({"type": "choice", "choices": ["a", 1]}, "'response_format.choices'"),
        ({"type": "choice", "choices": "a"}, "'response_format.choices'"),
    ],
)
def test_anything_else_is_refused_by_name(value: object, names: str) -> None:
    with pytest.raises(PromptError) as caught:
        parse(value)
    assert caught.value.code is ErrorCode.INVALID_PROMPT
    assert names in str(caught.value)


def test_an_answer_that_never_ends_cannot_keep_to_a_format() -> None:
    with pytest.raises(PromptError, match="'ignore_eos'"):
        parse_prompt(b'{"prompt": "x", "ignore_eos": true, "response_format": {"type": "json_object"}}')
    assert parse_prompt(b'{"prompt": "x", "ignore_eos": true, "response_format": {"type": "text"}}').ignore_eos
