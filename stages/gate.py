"""Which steps a stage may compute: the protocol's rules as a pure state machine (D4, D6, D7)."""

from dataclasses import dataclass

from engine.contract.control import PROTOCOL_VERSION, Open
from engine.contract.errors import ErrorCode, StepError
from engine.contract.ids import Epoch, Incarnation, StepNumber
from engine.contract.messages import Step


@dataclass(slots=True)
class Gate:
    """Within an epoch, steps come with consecutive numbers, once each; anything else is refused, never computed."""

    incarnation: Incarnation
    epoch: Epoch = Epoch(0)
    expected: StepNumber = StepNumber(0)
    broken: bool = False  # a step was lost or failed: nothing of this epoch is computed any more

    def open(self, message: Open) -> tuple[str, str]:
        """Adopt an epoch; ("", "") or (code, why not)."""
        if message.protocol != PROTOCOL_VERSION:
            return ErrorCode.WRONG_VERSION, f"protocol {message.protocol}, this worker speaks {PROTOCOL_VERSION}"
        if message.epoch <= self.epoch:
            return ErrorCode.STALE_EPOCH, f"epoch {message.epoch} is not after {self.epoch}"
        self.epoch, self.expected, self.broken = Epoch(message.epoch), StepNumber(0), False
        return "", ""

    def admit(self, step: Step) -> None:
        """Return if the step is the one to compute now. Raises StepError."""
        if step.epoch < self.epoch:
            raise StepError(ErrorCode.STALE_EPOCH, f"step of epoch {step.epoch}, this is {self.epoch}")
        if step.epoch > self.epoch:
            raise StepError(ErrorCode.UNKNOWN_EPOCH, f"step of epoch {step.epoch}, which was never opened here")
        if step.incarnation != self.incarnation:
            raise StepError(ErrorCode.FOREIGN_INCARNATION, f"step for incarnation {step.incarnation}")
        if step.number < self.expected:
            raise StepError(ErrorCode.STEP_REPEATED, f"step {step.number} came again, {self.expected} is due")
        if step.number > self.expected or self.broken:
            self.broken = True
            raise StepError(ErrorCode.STEP_GAP, f"step {step.number} came, {self.expected} is due")
        self.expected = StepNumber(step.number + 1)

    def fail(self) -> None:
        """The admitted step could not be computed."""
        self.broken = True
        self.expected = StepNumber(max(self.expected - 1, 0))
