"""Where files are kept that can be made or fetched again."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Where downloads and splits are kept: SHARDLINE_CACHE, else the user's cache folder."""
    if own := os.environ.get("SHARDLINE_CACHE"):
        return Path(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "shardline"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardline"
