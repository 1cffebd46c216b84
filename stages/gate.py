"""Which steps a worker may compute: the protocol's checks (D4, D6, D7). No I/O, no tensors, no clock."""

from dataclasses import dataclass
from typing import Final

from engine.contract.control import PROTOCOL_VERSION, Open, Opened
from engine.contract.errors import ErrorCode, StepError
from engine.contract.ids import Epoch, Incarnation, StepNumber
from engine.contract.messages import Step

LIMIT: Final = 1 << 63  # of the numbers in a frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where the results of one epoch go."""

    epoch: Epoch
    done: str  # subject of step results and failures
    next_subject: str  # "" on the last stage
    next_incarnation: Incarnation


class Gate:
    """Within an epoch, steps come with consecutive numbers, once each; anything else is refused, never computed."""

    def __init__(self, incarnation: Incarnation, *, last: bool) -> None:
        self._incarnation, self._last = incarnation, last
        self._whole = True  # no step of this epoch is missing
        self.route: Route | None = None
        self.expected = StepNumber(0)

    @property
    def epoch(self) -> Epoch:
        """The epoch adopted last; 0 before the first."""
        return self.route.epoch if self.route else Epoch(0)

    def adopt(self, message: Open) -> Opened:
        """Start a newer epoch, or say why not."""
        refusal = self.refusal(message)
        if refusal is not None:
            code, reason = refusal
            return Opened(epoch=self.epoch, incarnation=self._incarnation, code=code, message=reason)
        self.route = Route(
            epoch=Epoch(message.epoch),
            done=message.done,
            next_subject=message.next_subject,
            next_incarnation=Incarnation(message.next_incarnation),
        )
        self.expected, self._whole = StepNumber(0), True
        return Opened(epoch=self.epoch, incarnation=self._incarnation)

    def refusal(self, message: Open) -> tuple[ErrorCode, str] | None:
        """Why an epoch must not be adopted; changes nothing."""
        if message.protocol != PROTOCOL_VERSION:
            return (
                ErrorCode.WRONG_VERSION,
                f"this worker speaks protocol {PROTOCOL_VERSION}, not {message.protocol}: "
                "install the same shardline everywhere",
            )
        if message.epoch <= self.epoch:
            return ErrorCode.STALE_EPOCH, f"epoch {message.epoch} is not newer than {self.epoch}"
        if wrong := self._malformed(message):
            return ErrorCode.MALFORMED_FRAME, f"the open message {wrong}"
        return None

    def _malformed(self, message: Open) -> str:
        if bool(message.next_subject) == self._last:
            return "names a next stage, but this is the last" if self._last else "names no next stage"
        if max(message.epoch, message.next_incarnation) >= LIMIT or message.next_incarnation < 0:
            return "has a number that does not fit a frame"
        if any(subject.split() != [subject] for subject in (message.done, message.next_subject) if subject):
            return "names a subject with a space in it"
        return "" if message.done else "names no subject for results"

    def admit(self, step: Step) -> Route:
        """The route of the step that is to be computed now. Raises StepError for any other."""
        if step.epoch < self.epoch:
            raise StepError(ErrorCode.STALE_EPOCH, f"step of epoch {step.epoch}, this is {self.epoch}")
        if self.route is None or step.epoch > self.epoch:
            raise StepError(ErrorCode.UNKNOWN_EPOCH, f"step of epoch {step.epoch}, which was never opened here")
        if step.incarnation != self._incarnation:
            raise StepError(ErrorCode.FOREIGN_INCARNATION, f"step for incarnation {step.incarnation}")
        if step.number < self.expected:
            raise StepError(ErrorCode.STEP_REPEATED, f"step {step.number} came again, {self.expected} is due")
        if step.number > self.expected or not self._whole:
            self._whole = False
            raise StepError(ErrorCode.STEP_GAP, f"step {step.number} came, {self.expected} is due")
        self.expected = StepNumber(self.expected + 1)
        return self.route

    def close_epoch(self) -> None:
        """The admitted step was not computed: every later one is refused as a gap, until a new epoch."""
        self._whole = False
        self.expected = StepNumber(self.expected - 1)
