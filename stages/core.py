"""What a worker does with a message, without any I/O: bytes in, bytes out. Runs in the one thread that computes."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.contract.control import Open, Opened
from engine.contract.copies import copies_of
from engine.contract.errors import DeviceError, ErrorCode, FrameError, StepError
from engine.contract.ids import Epoch, StepNumber
from engine.contract.messages import Frame, Step, StepFailed, StepResult
from engine.contract.side import RowSide
from engine.contract.traces import Tracer, traces_of
from engine.transport.subjects import Subjects
from engine.wire.frame import decode, encode
from stages.gate import Gate, Route
from stages.identity import Identity
from stages.runner import Runner
from stages.sampling import Chosen, Sampler, greedy
from stages.wishes import check_wishes, read_sides

log = logging.getLogger("shardline.stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to publish, and what it took to make it."""

    subject: str
    data: bytes
    reply: str = ""
    computed: bool = False
    seconds: float = 0.0  # from decoded to encoded


class StageCore:
    """One shard behind its gate. Not thread-safe: every call from one thread, in arrival order."""

    def __init__(
        self,
        identity: Identity,
        runner: Runner,
        subjects: Subjects,
        check: Callable[[], None] = lambda: None,
        tracer: Tracer | None = None,
    ) -> None:
        """`check` raises DeviceError when the device does not compute."""
        self._identity, self._runner, self._subjects, self._check = identity, runner, subjects, check
        self._tracer = tracer
        self._suspect = False  # the device failed on a step; the step may be to blame
        self._gate = Gate(identity.incarnation, last=identity.last)
        self._sampler: Sampler | None = None  # made when the head's width is known
        self._newest = 0
        self.refusals = Counter[str]()  # frames, dropped ones included, by code; safe to copy in any thread

    @property
    def last(self) -> bool:
        """Whether it samples."""
        return self._identity.last

    @property
    def epoch(self) -> Epoch:
        """The epoch adopted last; 0 before the first. Safe to read from any thread."""
        return self._gate.epoch

    @property
    def route(self) -> Route | None:
        """Where results go. Safe to read from any thread."""
        return self._gate.route

    @property
    def refused(self) -> int:
        """Frames that were not computed, dropped ones included."""
        return sum(dict(self.refusals).values())

    def announce(self, message: Open) -> None:
        """An epoch is about to be opened: drop what still waits of older ones. Callable from any thread."""
        if self._gate.refusal(message) is None:
            self._newest = max(self._newest, message.epoch)

    def supersede(self, epoch: Epoch) -> None:
        """Another worker has our stage since that epoch: steps of older ones are dropped. Callable from any thread."""
        self._newest = max(self._newest, epoch)

    def open(self, message: Open) -> Opened:
        """Adopt an epoch, or say why not: DEVICE_FAILED when this worker is of no use any more."""
        opened = self._gate.adopt(message)
        if opened.code:
            return opened
        self._runner.reset()
        try:
            if self._suspect:
                self._check()
        except DeviceError as error:
            return replace(opened, code=ErrorCode.DEVICE_FAILED, message=str(error))
        self._suspect = False
        return opened

    def handle(self, data: bytes, reply: str = "", sides: Sequence[bytes] = ()) -> Outgoing | None:
        """Compute a step or refuse it; None: nobody to tell.

        `reply`: where the sender of this frame wants failures. `sides`: the frames that came for it alone.
        """
        try:
            frame = decode(data)
            if not isinstance(frame, Step):
                raise FrameError(f"a {type(frame).__name__} where steps go")
        except FrameError as error:
            return self._undecodable(error)
        began = time.monotonic()
        try:
            if frame.epoch < self._newest:
                raise StepError(ErrorCode.STALE_EPOCH, f"epoch {self._newest} is being opened")
            route = self._gate.admit(frame)
            subject, result, onward = self._compute(frame, route, sides)
        except StepError as error:
            return self._refuse(frame, error, reply)
        except DeviceError as error:
            self._suspect = True
            return self._refuse(frame, StepError(ErrorCode.DEVICE_FAILED, str(error)), reply)
        data = encode(result)
        if self._tracer and frame.extra:
            self._trace(self._tracer, frame, began)
        return Outgoing(subject=subject, data=data, reply=onward, computed=True, seconds=time.monotonic() - began)

    def _trace(self, tracer: Tracer, step: Step, began: float) -> None:
        ended, tokens = time.monotonic(), step.rows.tokens
        for context in traces_of(step.extra):
            tracer.start(f"stage {self._identity.stage}", context, began, **{"shardline.tokens": tokens}).end(ended)

    def _compute(self, step: Step, route: Route, sides: Sequence[bytes]) -> tuple[str, Frame, str]:
        try:
            wishes = read_sides(step, sides, self._identity.incarnation) if self._identity.last else ()
            if copies := copies_of(step.extra):
                self._runner.copy_slots(copies)
            value = self._runner.infer(step.rows, step.value)
            return self._result(step, route, value, wishes)
        except (StepError, DeviceError):
            self._gate.close_epoch()
            raise

    def _result(
        self, step: Step, route: Route, value: npt.NDArray[Any], wishes: Sequence[RowSide]
    ) -> tuple[str, Frame, str]:
        if self._identity.last:
            chosen = self._choose(step, value, wishes)
            result = StepResult(
                epoch=step.epoch,
                number=step.number,
                incarnation=self._identity.incarnation,
                tokens=chosen.tokens,
                logprobs=chosen.logprobs,
            )
            return route.done, result, ""
        onward = Step(
            epoch=step.epoch,
            number=step.number,
            incarnation=route.next_incarnation,
            rows=step.rows,
            value=value,
            extra=step.extra,
            sides=step.sides,
        )
        place = (self._identity.stage, self._identity.incarnation)
        return route.next_subject, onward, self._subjects.stage_gone(*place, step.epoch)

    def _choose(self, step: Step, logits: npt.NDArray[Any], wishes: Sequence[RowSide]) -> Chosen:
        if not wishes:
            return Chosen(greedy(logits), [])
        if self._sampler is None:
            self._sampler = Sampler(np.arange(logits.shape[-1], dtype=np.int32))
        check_wishes(wishes, logits.shape[-1])
        return self._sampler.choose(logits, step.rows.picked_counts, wishes)

    def _refuse(self, step: Step, error: StepError, reply: str) -> Outgoing | None:
        self.refusals[error.code.value] += 1
        if error.code == ErrorCode.STALE_EPOCH:
            log.debug("dropped step %d: %s", step.number, error)
            return None  # its decoder has moved on
        log.warning("refused step %d of epoch %d: %s, %s", step.number, step.epoch, error.code, error)
        subject = self.route.done if self.route and step.epoch == self.route.epoch else self._to_decoder(reply)
        return self.failure(error.code, str(error), epoch=step.epoch, number=step.number, subject=subject)

    def _to_decoder(self, reply: str) -> str:
        """A decoder waits for results at the reply subject of its steps; a stage only for word of our absence."""
        return reply if reply.startswith(f"{self._subjects.root}.done.") else ""

    def _undecodable(self, error: FrameError) -> Outgoing | None:
        self.refusals[error.code.value] += 1
        if error.code != ErrorCode.WRONG_VERSION:
            log.debug("dropped a frame: %s", error)
            return None
        log.warning("refused a frame: %s", error)
        return self.failure(error.code, str(error))

    def failure(
        self,
        code: ErrorCode,
        message: str,
        *,
        epoch: Epoch | None = None,
        number: StepNumber | None = None,
        subject: str | None = None,
    ) -> Outgoing | None:
        """A StepFailed, by default of the step expected next to the current decoder; None when there is nobody."""
        to = subject if subject is not None else self.route.done if self.route else ""
        if not to:
            return None
        failed = StepFailed(
            epoch=self.epoch if epoch is None else epoch,
            number=self._gate.expected if number is None else number,
            incarnation=self._identity.incarnation,
            stage=self._identity.stage,
            code=code,
            message=message,
        )
        return Outgoing(subject=to, data=encode(failed))
