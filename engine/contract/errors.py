"""Everything that can go wrong on purpose, and who handles it.

ShardlineError
  UsageError                 wrong input to a command             -> the command prints it and exits 2
  NotServingError            nobody would answer a prompt         -> shardline status prints it and exits 3
  ManifestError              shards missing, altered, foreign     -> the command prints it and exits 1
  CutError                   this graph cannot be cut             -> shard-export prints it and exits 1
  DeviceError                OpenVINO refused to load or compile  -> stage-run prints it and exits 1
                             or to compute                        -> StepFailed to the decoder
  TransferError              files could not be sent or fetched   -> the command prints it and exits 1
    NotPushedError           the broker has no such model yet     -> stage-run and decoder-run wait for it
  BrokerError                broker missing or unfit              -> the command prints it and exits 1
    NoResponderError         nobody subscribes to a subject       -> the caller decides
    LeaseLostError           another decoder owns the pipeline    -> decoder-run stops serving
    OverloadedError          the queue of prompts is full          -> the client tries again later
    OvertakenError           another decoder owns the request     -> the decoder drops the request
  PromptError                a prompt that cannot be answered     -> an error event to its client
  FrameError                 bytes that are not a frame of ours   -> the receiver counts and drops them
  StepError                  a step a stage must not compute      -> StepFailed to the decoder
Any other exception is a bug: it ends the process.
"""

from enum import StrEnum
from typing import Final

RETRY_AFTER: Final = 5  # seconds: what a client is told that comes when all is full


class ErrorCode(StrEnum):
    """The same word on the wire, in logs and in metrics."""

    # prompts
    INVALID_PROMPT = "invalid_prompt"
    UNKNOWN_FIELD = "unknown_field"
    PROMPT_TOO_LONG = "prompt_too_long"
    TOO_LARGE = "too_large"
    TOO_MANY_DELIVERIES = "too_many_deliveries"
    DUPLICATE_ID = "duplicate_id"
    OVERLOADED = "overloaded"
    DEADLINE_PASSED = "deadline_passed"
    FORMAT_TOO_COMPLEX = "format_too_complex"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"
    # steps
    WRONG_VERSION = "wrong_version"
    MALFORMED_FRAME = "malformed_frame"
    STALE_EPOCH = "stale_epoch"
    UNKNOWN_EPOCH = "unknown_epoch"
    STEP_GAP = "step_gap"
    STEP_REPEATED = "step_repeated"
    FOREIGN_INCARNATION = "foreign_incarnation"
    INVALID_ROWS = "invalid_rows"
    DEVICE_FAILED = "device_failed"
    NEXT_STAGE_GONE = "next_stage_gone"
    SIDE_MISSING = "side_missing"


class ShardlineError(Exception):
    """Root of the errors that are part of the contract."""


class UsageError(ShardlineError):
    """Wrong input to a command."""


class NotServingError(ShardlineError):
    """A model that would not answer a prompt now; says what is missing."""


class ManifestError(ShardlineError):
    """Shards on disk are missing, altered or do not belong together."""


class CutError(ShardlineError):
    """The graph cannot be cut there; names the operation."""


class DeviceError(ShardlineError):
    """OpenVINO could not load, compile or run a shard on the device."""


class TransferError(ShardlineError):
    """Files of a split could not be sent to the broker or fetched from it."""


class NotPushedError(TransferError):
    """The broker has no such model, or not yet."""


class BrokerError(ShardlineError):
    """The broker is missing, or lacks something that is needed."""


class NoResponderError(BrokerError):
    """Nobody subscribes to the subject of a request."""


class LeaseLostError(BrokerError):
    """Another decoder has taken the pipeline's lease, or something else has."""


class OverloadedError(BrokerError):
    """The queue of prompts is full."""

    code = ErrorCode.OVERLOADED
    retry_after = RETRY_AFTER  # seconds


class OvertakenError(BrokerError):
    """Another decoder has gone on with the answer."""


class PromptError(ShardlineError):
    """A prompt that cannot be answered; becomes an error event."""

    def __init__(self, code: ErrorCode, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.code, self.field = code, field  # the prompt's field that is wrong, "" when it is not one

    def as_fields(self) -> dict[str, str]:
        """For clients: `field` where one is wrong, `retry_after` in seconds where trying again later helps."""
        fields = {"code": str(self.code), "message": str(self)}
        if self.field:
            fields["field"] = self.field
        if self.code is ErrorCode.OVERLOADED:
            fields["retry_after"] = str(RETRY_AFTER)
        return fields


class FrameError(ShardlineError):
    """Bytes that are not a frame of this version."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.MALFORMED_FRAME) -> None:
        super().__init__(message)
        self.code = code


class StepError(ShardlineError):
    """A step that a stage must refuse; nothing has been computed."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
