"""From logits to token ids, on the last stage."""

import numpy as np

from engine.contract.errors import DeviceError
from engine.contract.messages import FloatArray, IntArray


def greedy(logits: FloatArray) -> IntArray:
    """The likeliest token of each row, the lowest id on ties.

    `logits`: float32 (picked, vocabulary); returns int32 (picked,). Raises DeviceError for logits that are not numbers.

    numpy and not a TopK in the graph: for 1 / 8 / 16 rows of 49,152 logits argmax takes 0.02 / 0.09 / 0.20 ms on one
    thread, beside 8.5 / 19 / 30 ms of the head; with a TopK behind it the head took as long within the noise.
    """
    if not logits.shape[0]:
        return np.zeros(0, np.int32)
    ids = logits.argmax(axis=-1)
    if np.isnan(logits[np.arange(len(ids)), ids]).any():  # argmax stops at the first NaN
        raise DeviceError("the head returned logits that are not numbers")
    return ids.astype(np.int32)
