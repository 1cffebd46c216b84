"""Who goes into the next step, so that groups take equally long; and how much of a prompt fits beside them."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final

from engine.contract.ids import RequestId
from engine.decoder.pipeclock import PipeTimes
from engine.decoder.sequence import Sequence
from engine.decoder.steptime import Line, Work

EVEN: Final = 1 + 1e-9  # rounding of sums
ENOUGH: Final = 0.9  # of an even group: contexts differ by a few tokens, that must not move a sequence


def served_order(sequence: Sequence) -> tuple[int, int]:
    """Least recently served first, then higher priority."""
    return sequence.last_step, -sequence.priority


def row_work(sequence: Sequence, least: int) -> Work:
    """The next row of an answer, or the one under way. `least`: tokens of the smallest row."""
    return Work(1, max(1 + len(sequence.tail), least), sequence.length)


def chunk_work(sequence: Sequence, tokens: int) -> Work:
    """The next chunk of a prompt, at most that many tokens of it."""
    tokens = min(sequence.behind, tokens)
    return Work(1, tokens, sequence.sent + tokens)


def take_share(ready: Items[Sequence], weights: Mapping[RequestId, float], share: float, steps: int) -> list[Sequence]:
    """The next step's part of `ready` when so many steps can still be sent; at least one of them.

    `weights`: seconds that each adds to a step. `share`: of an even group. Least recently served first; of those
    served together the heaviest first, so that of an overweight group the light ones stay for the next step.
    """
    order = sorted(ready, key=lambda s: (*served_order(s), -weights[s.id]))
    each = sum(weights[s.id] for s in ready) / max(steps, 1)
    taken: list[Sequence] = []
    total = 0.0
    for sequence in order:
        weight = weights[sequence.id]
        if taken and (total + weight / 2 > each * EVEN or total >= ENOUGH * share):
            break
        taken.append(sequence)
        total += weight
    return taken


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a step with prompt chunks may take while somebody reads an answer, in seconds."""

    step: float  # in the slowest place
    loop: float

    def tokens(self, times: PipeTimes, there: Work, start: int) -> int:
        """Prompt tokens from `start` on that fit into a step that holds `there` already; may be negative."""
        slowest, loop = times.slowest, times.loop
        return int(min(_tokens(slowest, self.step, there, start), _tokens(loop, self.loop, there, start)))


def budget_of(times: PipeTimes, answering: Work, rows: int, steps: int, smoothness: float) -> Budget:
    """The cycle of `rows` answers with that work may become `smoothness` times as long; all steps share that time."""
    groups = min(rows, steps)
    cycle = smoothness * times.cycle(answering.over(groups), groups)
    return Budget(cycle / steps, cycle)


def _tokens(line: Line, seconds: float, there: Work, start: int) -> float:
    spare = seconds - line.of(there + Work(1, 0, start))
    return spare / max(line.token + line.position, 1e-12)
