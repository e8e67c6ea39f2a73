"""What the hub says of a model without downloading it: its configuration, and how large it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from app.models.cache import check_repository, is_repository
from app.models.errors import DownloadError, ModelError
from app.models.file_filter import files_to_download
from app.models.hub import Hub, hub_client
from app.models.manifest import ModelFile
from app.models.pull import HubSettings
from app.models.retry import RetryableError, RetryPolicy

_LARGEST = 4 << 20
"""Bytes of a config.json; the longest are under 100 KB."""
_MOST_FOUND = 30


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model at the hub: the object in its config.json, and the files that a pull would fetch."""

    repository: str
    config: dict[str, Any]
    files: tuple[ModelFile, ...]


def fetch_hub_model(repository: str, settings: HubSettings) -> HubModel:
    """Ask the hub. Blocks; ModelError when there is no such model, when it would be refused, or
    when the hub cannot be reached."""
    check_repository(repository)
    try:
        return asyncio.run(_look(repository, settings))
    except DownloadError:
        raise ModelError(
            f"The hub could not be asked about {repository}",
            "check the connection, or take a model from `specchat models search`",
        ) from None


def search_hub(words: str, settings: HubSettings) -> tuple[str, ...]:
    """Repositories of models for MLX whose names have these words, the most used first. Blocks;
    ModelError when the hub cannot be asked."""

    async def found() -> list[Any]:
        async with _asked(settings) as (hub, _):
            return await hub.search(words, _MOST_FOUND)

    try:
        entries = asyncio.run(found())
    except DownloadError:
        raise ModelError("The hub could not be searched", "check the connection") from None
    names = (entry.get("id") for entry in entries if isinstance(entry, dict))
    return tuple(name for name in names if isinstance(name, str) and is_repository(name))


@asynccontextmanager
async def _asked(settings: HubSettings) -> AsyncIterator[tuple[Hub, RetryPolicy]]:
    """Somebody waits for the answer: better none soon than one in minutes."""
    patience = replace(
        settings.retry_policy, max_attempts=min(settings.retry_policy.max_attempts, 2)
    )
    async with hub_client(patience, settings.tls) as connections:
        yield Hub(connections, settings.endpoint, settings.token, patience), patience


async def _look(repository: str, settings: HubSettings) -> HubModel:
    async with _asked(settings) as (hub, patience):
        commit = await hub.commit(repository)
        files = files_to_download(repository, await hub.tree(repository, commit))

        async def read() -> bytes:
            body = bytearray()
            async with hub.file(repository, commit, "config.json", None) as response:
                if response.status_code != 200:
                    raise RetryableError(f"the hub answered with status {response.status_code}")
                async for chunk in patience.with_stall_timeout(response.aiter_raw()):
                    body += chunk
                    if len(body) > _LARGEST:
                        break
            return bytes(body)

        body = await hub.with_retries(read)
    try:
        config = json.loads(body)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ModelError(
            f"The config.json of {repository} holds no JSON object", "take another model"
        )
    return HubModel(repository, config, files)
