from collections.abc import Generator

import pytest

from tests.conftest import Shards
from tests.faults.asking import HASTY, Disturbed
from tests.system.running import running


@pytest.fixture(scope="package")
def disturbed(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Generator[Disturbed]:
    """One pipeline for all tests of this folder."""
    with running(shards(2), tmp_path_factory.mktemp("faults"), decoder_options=HASTY) as here:
        yield Disturbed(here)
