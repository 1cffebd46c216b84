"""Run one job of a build in a process of its own: its memory is free again when it ends."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.contract.errors import CutError, ManifestError, ShardlineError, UsageError
from export_tools.sliced.checkpoint import CannotSliceError

Run = Callable[[Mapping[str, Any]], dict[str, Any]]
_ERRORS: Final = {error.__name__: error for error in (CannotSliceError, CutError, UsageError, ManifestError)}


def run(job: Mapping[str, Any]) -> dict[str, Any]:
    """What export_tools.sliced.worker answers. Raises the ShardlineError that it met, or one that says how it ended."""
    command = [sys.executable, "-m", "export_tools.sliced.worker", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        if done.returncode < 0:
            said = f"it was ended by signal {-done.returncode}, as when memory runs out: more --stages take less"
        raise ShardlineError(
            f"stage {job['index']} could not be built ({job['task']}): {said}. The same command goes on from here"
        ) from None
    return checked(answer)


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer that is not an error. Raises the error."""
    if kind := answer.get("error"):
        raise _ERRORS.get(kind, ShardlineError)(answer["message"])
    return answer
