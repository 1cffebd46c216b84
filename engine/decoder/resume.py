"""Going on with an answer that another decoder began: what clients were told is certain. No I/O."""

from collections.abc import Iterable

from engine.contract.prompt import TokenEvent
from engine.contract.told import Told
from engine.decoder.sequence import Sequence


def resume(choices: list[Sequence], events: Iterable[TokenEvent | Told]) -> None:
    """Take the tokens that these events told as accepted, as if this decoder had sampled them.

    Token by token they give the text that was shown, so the next event begins where the last one ended. Raises
    ValueError for tokens that the answer's grammar forbids.
    """
    for event in events:
        sequence = choices[event.index]
        delta = sequence.answer.accept(event.ids)
        sequence.answer.logprobs += event.logprobs
        sequence.tokens.extend(delta.ids)
        if sequence.constraint is not None:
            sequence.constraint.accept(delta.ids)
    for sequence in choices:
        if sequence.answer.ids:  # it ran: ahead of those that did not, and its deadline was met
            sequence.admitted = sequence.first_token = sequence.arrived
