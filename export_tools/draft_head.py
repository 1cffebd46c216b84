"""Which tokens a draft's head needs: those that the draft itself is likely to say (the idea of FR-Spec)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.contract.errors import UsageError
from engine.contract.manifest import Manifest, load_manifest
from engine.decoder.tokenizer import Tokenizer, load_tokenizer
from stages.chain import make_rows
from stages.loader import load_runner
from stages.runner import Runner
from stages.settings import MIB, RunnerOptions

Ids = npt.NDArray[np.int32]
Say = Callable[[str], None]
_TEXT: Final = "user-text-goes-here"  # found again in a rendered chat
_BLOCK: Final = 32  # tokens; as large as a block of any device's pool
_POOL: Final = 32 * MIB  # beside the sequences, for rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How much text is written to find out."""

    sequences: int = 48  # written side by side
    tokens: int = 200  # of each
    seed: int = 0


def rank_tokens(folder: Path, sampling: Sampling, say: Say) -> Ids:
    """Every token of the draft in `folder` (a split of one stage with its whole head), the most important first.

    Special tokens lead; the others follow by the probability that the draft gives them, averaged over text that it
    writes itself. The same sampling gives the same order on the same machine. Raises ManifestError, DeviceError.
    """
    manifest = load_manifest(folder)
    tokenizer = load_tokenizer(folder, manifest)
    start = opening(tokenizer, manifest)
    tokens = min(sampling.tokens, manifest.context_length - len(start))
    blocks = -(-(len(start) + tokens) // _BLOCK) * 2
    pool = manifest.kv_bytes_per_token * blocks * _BLOCK * sampling.sequences + _POOL
    runner = load_runner(folder, manifest, 0, RunnerOptions(kind="paged", profile="fast", kv_bytes=pool))
    say(f"finding its frequent tokens in {sampling.sequences} x {tokens} tokens that it writes")
    try:
        mass = _sampled_mass(runner, start, sampling.sequences, tokens, np.random.default_rng(sampling.seed))
    finally:
        runner.close()
    order = np.argsort(-mass, kind="stable")
    return leading(special_tokens(tokenizer, manifest), order.tolist())


def _sampled_mass(
    runner: Runner, start: Sequence[int], count: int, tokens: int, random: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Probability of every token, summed over all positions of `count` sequences of `tokens` sampled tokens."""
    size = runner.capabilities.block_size
    per_sequence = -(-(len(start) + tokens) // size)
    fresh, held = np.tile(np.array(start, np.int32), (count, 1)), 0
    mass: npt.NDArray[Any] = np.zeros(1)
    for _ in range(tokens):
        length = fresh.shape[1]
        rows = [(slot, held, length, length - 1, 1) for slot in range(count)]
        logits = runner.infer(make_rows(rows, size, per_sequence), fresh.ravel()).astype(np.float64)
        chances = np.exp(logits - logits.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        mass = mass + chances.sum(0)
        drawn = (chances.cumsum(-1) < random.random((count, 1))).sum(-1)
        held += length
        fresh = np.minimum(drawn, logits.shape[1] - 1).astype(np.int32)[:, None]
    return mass


def opening(tokenizer: Tokenizer, manifest: Manifest) -> list[int]:
    """What a chat begins with, up to where the user's text does; one token where the model has no chats."""
    try:
        begin = tokenizer.chat([{"role": "user", "content": _TEXT}]).split(_TEXT)[0]
    except ValueError:
        begin = ""
    return tokenizer.encode(begin, special=False) or [*_bos(manifest), *manifest.eos_ids, 0][:1]


def special_tokens(tokenizer: Tokenizer, manifest: Manifest) -> list[int]:
    """Tokens that a head must have: those that begin and end texts, and the turns of a chat."""
    try:
        chat = tokenizer.encode(tokenizer.chat([{"role": "user", "content": _TEXT}]), special=False)
    except ValueError:
        chat = []
    found = [*manifest.eos_ids, *_bos(manifest), *(token for token in chat if not tokenizer.decode([token]))]
    return [token for token in dict.fromkeys(found) if 0 <= token < manifest.vocabulary]


def _bos(manifest: Manifest) -> list[int]:
    return [] if manifest.bos_id is None else [manifest.bos_id]


def leading(first: Sequence[int], others: Sequence[int]) -> Ids:
    """`first`, then the `others` that are not among them; every token once."""
    return np.array(list(dict.fromkeys((*first, *others))), np.int32)


def read_ranking(path: Path, vocabulary: int) -> Ids:
    """Token ids that were ranked before. Raises UsageError when the file holds anything else."""
    try:
        ids: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if ids.dtype != np.int32 or ids.ndim != 1 or len(np.unique(ids)) != len(ids):
        raise UsageError(f"{path} is not a list of different token ids, int32")
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary:
        raise UsageError(f"{path} names tokens that the draft does not have: its vocabulary is {vocabulary}")
    return ids


def choose_rows(folder: Path, manifest: Manifest, ranking: Ids, count: int) -> Ids:
    """`count` tokens for the head of the draft in `folder`: special ones, then the first of the ranking."""
    special = special_tokens(load_tokenizer(folder, manifest), manifest)
    return leading(special, ranking.tolist())[: max(count, len(special))]
