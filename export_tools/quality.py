# pyright: basic
"""What fewer bits cost: the source before compression against the shards, on bundled texts, with every token given.

The source is computed layer by layer, so that one layer in 32 bits is all the memory it takes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov

from export_tools.passes.cut import cut

Values = list[npt.NDArray[Any]]  # per text: ids [tokens], hidden [1, tokens, hidden], logits [1, tokens, vocabulary]
MOST_TOKENS: Final = 128  # of each text
_EXACT: Final = {  # nothing but the weights may differ
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Of the shards against their source, over the positions of all texts."""

    positions: int
    perplexity: float
    source_perplexity: float
    divergence: float  # mean Kullback-Leibler divergence from the source, nats a token
    same_token: float  # share of positions at which both would choose the same token
    tokens_until_difference: float  # with the same choices in a row, on average

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {key: round(value, 5) for key, value in asdict(self).items()}


def compare_logits(source: Values, shards: Values, tokens: Values) -> Quality:
    """Logits of both behind every token of the texts."""
    losses: list[float] = []
    source_losses: list[float] = []
    divergences: list[float] = []
    same: list[bool] = []
    for theirs, ours, ids in zip(source, shards, tokens, strict=True):
        p, q = _log_softmax(theirs[0]), _log_softmax(ours[0])
        following = np.arange(len(ids) - 1), ids[1:]
        source_losses += (-p[following]).tolist()
        losses += (-q[following]).tolist()
        divergences += (np.exp(p) * (p - q)).sum(-1).tolist()
        same += (p.argmax(-1) == q.argmax(-1)).tolist()
    return Quality(
        positions=len(same),
        perplexity=float(np.exp(np.mean(losses))),
        source_perplexity=float(np.exp(np.mean(source_losses))),
        divergence=float(np.mean(divergences)),
        same_token=float(np.mean(same)),
        tokens_until_difference=float(sum(same) / (same.count(False) + 1)),
    )


def pass_through(parts: Iterable[ov.Model], values: Values) -> Values:
    """What comes out of one part after the other; each is compiled, used and dropped."""
    for part in parts:
        compiled = ov.Core().compile_model(part, "CPU", _EXACT)
        values = [_infer(compiled, value) for value in values]
    return values


def single_layers(path: Path, first: int, last: int) -> Iterator[ov.Model]:
    """The layers [first, last) of a model on disk, each alone."""
    core = ov.Core()
    for layer in range(first, last):
        yield cut(lambda: core.read_model(path), layer, layer + 1)


def save_values(path: Path, **sides: Values) -> None:
    """Keep what several sides have come to."""
    named: Any = {f"{side}{at}": value for side, values in sides.items() for at, value in enumerate(values)}
    np.savez(path, **named)


def load_values(path: Path, side: str) -> Values:
    """What `save_values` kept of a side."""
    with np.load(path) as found:
        return [found[f"{side}{at}"] for at in range(sum(name.rstrip("0123456789") == side for name in found.files))]


def token_ids(texts: Sequence[list[int]]) -> Values:
    """The first tokens of every text, those of one token left out."""
    return [np.array(ids[:MOST_TOKENS], np.int64) for ids in texts if len(ids) > 1]


def _infer(compiled: ov.CompiledModel, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A whole text as one prompt: ids [tokens] or hidden [1, tokens, hidden]."""
    batch = value[None] if value.ndim == 1 else value
    count = batch.shape[1]
    given = {
        "input_ids": batch,
        "inputs_embeds": batch,
        "attention_mask": np.ones((1, count), np.int64),
        "position_ids": np.arange(count)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    names = [name for port in compiled.inputs for name in port.get_names() if name in given]
    request = compiled.create_infer_request()
    return request.infer({name: given[name] for name in names})[0].copy()


def _log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
