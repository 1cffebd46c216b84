"""The whole message map: every subject of one model in one deployment."""

import re
from dataclasses import dataclass
from typing import Final

from engine.contract.control import MAIN_PIPELINE
from engine.contract.errors import UsageError
from engine.contract.ids import Epoch, Incarnation, RequestId, StageIndex

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Subjects:
    """Subjects `shardline.<deployment>.<model>.…`; nothing user-controlled goes into one without a check.

    `"*"` in place of a stage, a worker or a request: all of them, for permissions.
    """

    deployment: str
    model: str

    def __post_init__(self) -> None:
        for what, name in (("deployment", self.deployment), ("model", self.model)):
            if not _TOKEN.fullmatch(name):
                raise UsageError(f"{what} {name!r} must be 1 to 64 of A-Z a-z 0-9 _ -")

    @property
    def root(self) -> str:
        """What all subjects start with."""
        return f"shardline.{self.deployment}.{self.model}"

    @property
    def generate(self) -> str:
        """Request/reply with streamed replies."""
        return f"{self.root}.generate"

    @property
    def prompt(self) -> str:
        """Captured by the JetStream work queue."""
        return f"{self.root}.prompt"

    @property
    def dead(self) -> str:
        """Prompts given up, with their reason; captured by a JetStream stream."""
        return f"{self.root}.dead"

    @property
    def draft(self) -> str:
        """Questions to a draft model on another machine (request/reply)."""
        return f"{self.root}.draft"

    def probe(self, incarnation: Incarnation | int | str) -> str:
        """What a worker sends to itself, to measure the way to the broker and back."""
        return f"{self.root}.probe.{incarnation}"

    @property
    def heartbeats(self) -> str:
        """All heartbeats (a wildcard)."""
        return f"{self.root}.heartbeat.>"

    @staticmethod
    def all_heartbeats(deployment: str) -> str:
        """All heartbeats of all models of a deployment (a wildcard)."""
        return f"shardline.{deployment}.*.heartbeat.>"

    @property
    def prompt_stream(self) -> str:
        """Name of the work queue's stream."""
        return f"SHARDLINE_{self.deployment}_{self.model}_PROMPTS"

    @property
    def dead_stream(self) -> str:
        """Name of the dead letters' stream."""
        return f"SHARDLINE_{self.deployment}_{self.model}_DEAD"

    @property
    def event_stream(self) -> str:
        """Name of the stream that is the event log."""
        return f"SHARDLINE_{self.deployment}_{self.model}_EVENTS"

    @property
    def lease_bucket(self) -> str:
        """Name of the key-value bucket that holds the leases of the model's pipelines."""
        return f"SHARDLINE_{self.deployment}_{self.model}_LEASE"

    @staticmethod
    def lease_key(pipeline: str) -> str:
        """Key of a pipeline's lease in that bucket. Raises UsageError for a name that cannot be one."""
        if not _TOKEN.fullmatch(pipeline):
            raise UsageError(f"pipeline {pipeline!r} must be 1 to 64 of A-Z a-z 0-9 _ -")
        return "pipeline" if pipeline == MAIN_PIPELINE else f"pipeline.{pipeline}"

    @property
    def files(self) -> str:
        """Manifests and chunks of files, captured by a JetStream stream (docs/decisions/0013)."""
        return f"{self.root}.files"

    @property
    def files_stream(self) -> str:
        """Name of the stream that keeps them."""
        return f"SHARDLINE_{self.deployment}_{self.model}_FILES"

    @staticmethod
    def all_manifests(deployment: str) -> str:
        """Manifests of all models that a deployment's broker keeps (a wildcard)."""
        return f"shardline.{deployment}.*.files.manifest.*"

    def stage(self, index: StageIndex | int | str, incarnation: Incarnation | int | str) -> str:
        """Steps into one worker."""
        return f"{self.root}.stage.{index}.{incarnation}"

    def stage_gone(
        self, index: StageIndex | int | str, incarnation: Incarnation | int | str, epoch: Epoch | int | str
    ) -> str:
        """Where the broker tells a worker that nobody takes its results of an epoch. `"*"`: of every epoch.

        Its own subject, because only a publisher who listens there is told (docs/decisions/0001).
        """
        return f"{self.stage(index, incarnation)}.gone.{epoch}"

    def stage_control(self, index: StageIndex | int | str, incarnation: Incarnation | int | str) -> str:
        """Open (request/reply) for one worker; an empty message only asks the broker whether it is there."""
        return f"{self.root}.control.stage.{index}.{incarnation}"

    def done(self, decoder: str, epoch: Epoch | int | str) -> str:
        """Step results and failures of one epoch, straight to a decoder. `"*"`: of every epoch.

        The epoch is in the subject because the broker's 503 carries nothing else.
        """
        return f"{self.root}.done.{decoder}.{epoch}"

    def tokens(self, request: RequestId | str) -> str:
        """Numbered token events and the final one; those of durable prompts come by way of the event log."""
        return f"{self.tokens_root}.{request}"

    @property
    def tokens_root(self) -> str:
        """Where the event log shows what it has taken, each request's events under its id."""
        return f"{self.root}.tokens"

    @property
    def events_root(self) -> str:
        """Where decoders write into the event log, likewise (docs/decisions/0011)."""
        return f"{self.root}.events"

    @property
    def cancel(self) -> str:
        """Payload: the id of a request to stop."""
        return f"{self.root}.control.cancel"

    def stage_heartbeat(self, index: StageIndex | int) -> str:
        """A worker's heartbeat."""
        return f"{self.root}.heartbeat.stage.{index}"

    def decoder_heartbeat(self, decoder: str) -> str:
        """A decoder's heartbeat."""
        return f"{self.root}.heartbeat.decoder.{decoder}"
