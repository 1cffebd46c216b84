"""A small model made ready to guess the tokens of a larger one: a split of one stage, checked against its target."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from engine.contract.errors import CutError, UsageError
from engine.contract.manifest import HEAD_TOKENS, MANIFEST_NAME, Manifest, check_files, load_manifest, tokenizer_digest
from export_tools.draft_head import Sampling, choose_rows, rank_tokens, read_ranking
from export_tools.narrow import narrow_stage
from export_tools.sources.open import open_source
from export_tools.split import SplitOptions, split
from export_tools.vocabulary import first_difference, read_vocabulary

DEFAULT_ROWS: Final = 24576  # of 49,152: two thirds of a draft token's time, 98 % of what targets say
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """What the user wants."""

    target: Path  # a folder written by split
    out: Path
    name: str = ""
    head_tokens: int | None = None  # rows of its head; 0: all; None: what is best for one that comes with a ranking
    force: bool = False

    def check(self, source: Path) -> None:
        """Raise UsageError for what can be seen to be wrong before any work is done."""
        if not (self.target / MANIFEST_NAME).is_file():
            raise UsageError(f"{self.target} has no {MANIFEST_NAME}: --target is a folder written by split")
        for kept in (source.resolve(), self.target.resolve()):
            if self.out.resolve() in (kept, *kept.parents):
                raise UsageError(f"{self.out} holds {kept}, which it would replace: choose another --out")
        SplitOptions(out=self.out, stages=1, force=self.force).check_target()


def prepare_draft(source: Path, options: DraftOptions, say: Say) -> Manifest:
    """Write a draft for `options.target` to `options.out`, all of it or nothing.

    Raises UsageError when it may not be written or its tokens are not the target's, ManifestError, CutError.
    """
    options.check(source)
    target = load_manifest(options.target)
    check_files(options.target, target.tokenizer_files)
    out = options.out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent, ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary) / "draft"
        with open_source(source) as opened:
            manifest = split(opened, SplitOptions(out=folder, stages=1, name=options.name), say)
        say("comparing its tokens with the target's")
        check_fits(folder, manifest, options.target, target)
        manifest = _with_narrow_head(source, folder, manifest, options.head_tokens, say)
        manifest = replace(manifest, drafts_for=tokenizer_digest(target))
        manifest.save(folder)
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    return manifest


def check_fits(draft_folder: Path, draft: Manifest, target_folder: Path, target: Manifest) -> None:
    """Raise UsageError naming the first token that differs."""
    difference = first_difference(read_vocabulary(target_folder, target), read_vocabulary(draft_folder, draft))
    if difference:
        raise UsageError(f"{draft.name} cannot draft for {target.name}: {difference}")


def _with_narrow_head(source: Path, folder: Path, draft: Manifest, count: int | None, say: Say) -> Manifest:
    """The draft in `folder` with the head it shall have; whole where that is asked for, or nothing else possible."""
    known = source / HEAD_TOKENS
    ranking = read_ranking(known, draft.vocabulary) if known.is_file() else None
    if count is None:
        count = 0 if ranking is None else min(DEFAULT_ROWS, len(ranking))
    if not 0 < count < draft.vocabulary:
        return draft
    if ranking is None or len(ranking) < count:
        ranking = rank_tokens(folder, Sampling(), say)
    try:
        manifest = narrow_stage(folder, draft, choose_rows(folder, draft, ranking, count))
    except CutError as error:
        say(f"its head stays whole: {error}")
        return draft
    say(f"its head scores {count} of {draft.vocabulary} tokens")
    return manifest
