"""Numbers and names that must not be mixed up."""

from typing import NewType

Epoch = NewType("Epoch", int)
"""Revision of the pipeline's lease; fences everything older."""
StepNumber = NewType("StepNumber", int)
"""Consecutive from 0 within one epoch."""
Incarnation = NewType("Incarnation", int)
"""One life of one worker process: 64 bits, ordered by start time."""
StageIndex = NewType("StageIndex", int)
"""Place in the pipeline, from 0."""
RequestId = NewType("RequestId", str)
"""Chosen by the client (validated) or made from the queue's sequence number."""
