"""A small model made ready to guess the tokens of a larger one: a split of one stage, checked against its target."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.contract.errors import UsageError
from engine.contract.manifest import MANIFEST_NAME, Manifest, check_files, load_manifest, tokenizer_digest
from export_tools.sources.open import open_source
from export_tools.split import SplitOptions, split
from export_tools.vocabulary import first_difference, read_vocabulary

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """What the user wants."""

    target: Path  # a folder written by split
    out: Path
    name: str = ""
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
