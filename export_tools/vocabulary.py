"""Do two models mean the same by their tokens? A draft is of use only to a target that it shares every token with."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from engine.contract.manifest import Manifest
from engine.decoder.tokenizer import load_tokenizer

# Plain words only: tokenizers made from GGUF split rare characters in other places (" ½"), which does a draft no harm.
PROBES: Final = ("The keeper of the lighthouse didn't sleep.", "for name in names:\n    print(name)\n", "naïve café")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens that a model knows, whatever kind its tokenizer is of."""

    tokens: tuple[bytes | None, ...]  # by id; None: no token has this id
    bos_id: int | None  # None: not known
    eos_ids: tuple[int, ...]  # (): not known
    probes: tuple[tuple[int, ...], ...] = ()  # PROBES in tokens


def read_vocabulary(folder: Path, manifest: Manifest) -> Vocabulary:
    """The vocabulary of a split. Raises ManifestError when its tokenizer does not load."""
    tokenizer = load_tokenizer(folder, manifest)
    return Vocabulary(
        tokens=known_tokens(tokenizer.vocabulary(), rows=manifest.vocabulary),
        bos_id=manifest.bos_id,
        eos_ids=manifest.eos_ids,
        probes=tuple(tuple(tokenizer.encode(probe, special=False)) for probe in PROBES),
    )


def known_tokens(tokens: Sequence[bytes | None], *, rows: int) -> tuple[bytes | None, ...]:
    """What is left without padding: no names beyond the model's rows, no rows beyond the names.

    GGUF files name the rows that only fill up an embedding [PAD<id>].
    """
    known = [None if token == b"[PAD%d]" % at else token for at, token in enumerate(tokens[:rows])]
    while known and known[-1] is None:
        known.pop()
    return tuple(known)


def first_difference(target: Vocabulary, draft: Vocabulary) -> str | None:
    """What keeps `draft` from drafting for `target`, in words; None when nothing does."""
    for at, (ours, theirs) in enumerate(zip_longest(target.tokens, draft.tokens)):
        if ours != theirs:
            sizes = f" ({len(draft.tokens)} tokens against {len(target.tokens)})"
            return f"token {at} is {_shown(theirs)} in the draft and {_shown(ours)} in the target" + (
                sizes if len(draft.tokens) != len(target.tokens) else ""
            )
    return _special_difference(target, draft) or _probe_difference(target, draft)


def _special_difference(target: Vocabulary, draft: Vocabulary) -> str | None:
    """Models list more or fewer tokens that end a text; that they have one in common is enough."""
    if target.eos_ids and draft.eos_ids and not set(target.eos_ids) & set(draft.eos_ids):
        ours, theirs = (_listed(side, side.eos_ids) for side in (target, draft))
        return f"the end-of-text token is {theirs} in the draft and {ours} in the target"
    if target.bos_id is not None and draft.bos_id is not None and target.bos_id != draft.bos_id:
        ours, theirs = (_listed(side, [side.bos_id or 0]) for side in (target, draft))
        return f"the beginning-of-text token is {theirs} in the draft and {ours} in the target"
    return None


def _probe_difference(target: Vocabulary, draft: Vocabulary) -> str | None:
    for probe, ours, theirs in zip(PROBES, target.probes, draft.probes, strict=False):
        if ours != theirs:
            return f"{probe!r} is {list(theirs)} in the draft and {list(ours)} in the target"
    return None


def _listed(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    tokens = vocabulary.tokens
    return ", ".join(f"{at} {_shown(tokens[at] if 0 <= at < len(tokens) else None)}" for at in ids)


def _shown(token: bytes | None) -> str:
    if token is None:
        return "missing"
    try:
        return repr(token.decode())
    except UnicodeDecodeError:
        return repr(token)
