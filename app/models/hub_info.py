"""Asks the hub about models without downloading them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from app.models.cache import check_repository, is_repository
from app.models.check import drafts_only, refuse_draft_layers
from app.models.errors import DownloadError, ModelError
from app.models.file_filter import files_to_download
from app.models.hub import Hub, hub_client
from app.models.manifest import ModelFile
from app.models.pull import HubSettings

_MAX_CONFIG_BYTES = 4 << 20
"""The largest are under 100 KB."""
_MAX_RESULTS = 30


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model at the hub: its config.json, and the files that a pull would download."""

    repository: str
    config: dict[str, Any]
    files: tuple[ModelFile, ...]


def fetch_hub_model(repository: str, settings: HubSettings) -> HubModel:
    """Ask the hub about a model. Blocks; ModelError when the model does not exist or cannot be
    used, or when the hub cannot be reached."""
    check_repository(repository)
    try:
        return asyncio.run(_look(repository, settings))
    except DownloadError:
        raise ModelError(
            f"The hub could not be asked about {repository}",
            "check the connection, or choose a model from `specchat models search`",
        ) from None


def search_hub(words: str, settings: HubSettings) -> tuple[str, ...]:
    """Repositories of MLX models with these words in their names, most downloaded first, without
    those that hold only MTP layers. Blocks; ModelError when the hub cannot be reached."""

    async def found() -> list[Any]:
        async with _hub(settings) as hub:
            return await hub.search(words, _MAX_RESULTS)

    try:
        entries = asyncio.run(found())
    except DownloadError:
        raise ModelError("The hub could not be searched", "check the connection") from None
    names = (
        entry.get("id")
        for entry in entries
        if isinstance(entry, dict)
        and not (isinstance(entry.get("config"), dict) and drafts_only(entry["config"]))
    )
    return tuple(name for name in names if isinstance(name, str) and is_repository(name))


@asynccontextmanager
async def _hub(settings: HubSettings) -> AsyncIterator[Hub]:
    """With at most two attempts, because the user waits for the answer."""
    policy = replace(settings.retry_policy, max_attempts=min(settings.retry_policy.max_attempts, 2))
    async with hub_client(policy, settings.tls) as connections:
        yield Hub(connections, settings.endpoint, settings.token, policy)


async def _look(repository: str, settings: HubSettings) -> HubModel:
    async with _hub(settings) as hub:
        commit = await hub.commit(repository)
        files = files_to_download(repository, await hub.tree(repository, commit))

        async def read() -> bytes:
            async with hub.file(repository, commit, "config.json", None) as response:
                return await hub.read_body(response, _MAX_CONFIG_BYTES)

        body = await hub.with_retries(read)
    try:
        config = json.loads(body)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ModelError(
            f"The config.json of {repository} is not a JSON object", "choose another model"
        )
    refuse_draft_layers(config)
    return HubModel(repository, config, files)
