"""What `decoder-run` refuses before it waits for anybody."""

import asyncio
from pathlib import Path

import pytest

from engine.contract.errors import ManifestError
from engine.decoder.cli import serve_decoder
from tests.decoder.local_pipeline import config
from tests.manifests import manifest


def test_a_wrong_draft_is_refused_before_the_broker_is_waited_for(tmp_path: Path) -> None:
    manifest().save(tmp_path)
    nobody = config(shards=tmp_path, draft=str(tmp_path), nats="nats://127.0.0.1:1")

    async def serve() -> None:
        async with asyncio.timeout(20):
            await serve_decoder(nobody)

    with pytest.raises(ManifestError, match="not a draft model"):
        asyncio.run(serve())
