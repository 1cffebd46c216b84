import pytest

from engine.contract.errors import PromptError
from engine.contract.ids import RequestId
from engine.contract.prompt import parse_prompt
from engine.decoder.admission import Admission
from engine.decoder.constraint import ConstraintCompiler
from tests.decoder.local_pipeline import ByteTokenizer, manifest

ASKED = b'{"prompt": "x", "n": 2, "temperature": 1, "response_format": {"type": "choice", "choices": ["ab", "cd"]}}'


def test_every_answer_of_a_request_goes_its_own_way_through_the_grammar() -> None:
    compiler = ConstraintCompiler(ByteTokenizer(), vocabulary=manifest().vocabulary, eos_ids=[0])
    admission = Admission(manifest(), ByteTokenizer(), 10, compiler=compiler)
    one, two = (s.constraint for s in admission.choices(parse_prompt(ASKED), RequestId("r"), 0.0))
    assert one is not None
    assert two is not None
    one.accept(b"a")
    assert two.filter(b"cd") == tuple(b"cd")
    assert one.filter(b"b") == tuple(b"b")


def test_free_text_has_no_grammar() -> None:
    request = parse_prompt(b'{"prompt": "x", "response_format": {"type": "text"}}')
    (sequence,) = Admission(manifest(), ByteTokenizer(), 10).choices(request, RequestId("r"), 0.0)
    assert sequence.constraint is None


def test_a_decoder_without_grammars_refuses_a_format() -> None:
    with pytest.raises(PromptError, match="'response_format'"):
        Admission(manifest(), ByteTokenizer(), 10).choices(parse_prompt(ASKED), RequestId("r"), 0.0)
