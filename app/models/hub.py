"""HTTP client of the model hub: commits, lists of files, and files.

It sends three requests: `/api/models/R/revision/main` for the commit, the paged
`/api/models/R/tree/COMMIT?recursive=True`, and `/R/resolve/COMMIT/PATH`, which redirects large
files to signed addresses of a storage host. Error messages show only the status of a response.

huggingface_hub's own functions are not used for these requests. Since 1.18 its downloads start an
interrupted file again from the first byte (a file of weights often has several gigabytes), and they
publish files without checking digests: `tests/models/test_huggingface_hub.py` shows this. They
cannot be cancelled, and do not detect a body that arrives too slowly; a process that can be killed
would change only that.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx2

from app.models.cache import check_repository, is_repository
from app.models.check import drafts_only, refuse_draft_layers
from app.models.errors import DownloadError, ModelError
from app.models.manifest import COMMIT, MAX_FILES, ModelFile, files_to_download, too_many_files
from app.util.json_amount import is_too_much
from app.util.regular_files import open_descriptor

_MAX_REDIRECTS = 8
_MAX_BODY_BYTES = 32 << 20
"""Maximum bytes of an API page or a config.json. A page of 1,000 files has about 300 KB."""
_MAX_JSON = 200_000, 1_000_000
"""Maximum lists and objects in these, and values in them."""
_MAX_PAGES = 20
_MAX_RESULTS = 30
_RATE_LIMIT = re.compile(r"\br=0\s*;\s*t=(\d{1,9})\b")

T = TypeVar("T")


# ---------------------------------------------------------------------------------- settings


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How requests are retried. Times are in seconds. `max_attempts` counts consecutive attempts
    without progress."""

    connect_timeout: float = 15.0
    stall_timeout: float = 20.0
    """A connection that receives fewer than `min_bytes` in this time is closed."""
    min_bytes: int = 2048
    max_attempts: int = 6
    backoff: float = 1.0
    max_wait: float = 120.0
    """The longest wait between two attempts, even if the server asks for more."""

    def delay(self, failures: int, after: float | None) -> float:
        """Seconds before the next attempt: exponential backoff with jitter, but at least what the
        server asked for."""
        jittered = self.backoff * 2.0 ** (failures - 1) * random.uniform(0.75, 1.25)
        return max(min(jittered, self.max_wait), after or 0.0)


@dataclass(frozen=True, slots=True)
class HubSettings:
    """How to connect to the hub and download. Up to `connections` files are downloaded at once.
    `reserve_bytes` are left free on the disk. `tls` replaces the system's certificates."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    connections: int = 4
    reserve_bytes: int = 2 << 30
    tls: ssl.SSLContext | None = None


def default_hub_settings() -> HubSettings:
    """Settings with huggingface_hub's endpoint (HF_ENDPOINT) and token. Raises ModelError in
    offline mode, or if the token cannot be read."""
    from huggingface_hub import constants, get_token

    if constants.is_offline_mode():
        raise ModelError("HF_HUB_OFFLINE is set, so nothing can be downloaded", "unset it")
    token = None
    if not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        try:
            _require_file(Path(constants.HF_TOKEN_PATH))
            token = get_token()
        except Exception:
            # The original message might quote the token.
            raise ModelError(
                "The stored token cannot be read", "log in again with `hf auth login`"
            ) from None
    return HubSettings(constants.ENDPOINT, token)


def _require_file(path: Path) -> None:
    """Raise OSError if something else than a file, such as a pipe, would block the library."""
    with suppress(FileNotFoundError, NotADirectoryError):
        os.close(open_descriptor(path))


# ---------------------------------------------------------------------------------- requests


class RetryableError(Exception):
    """A request failed, perhaps temporarily. `reason` is a clause to show. `retry_after` is the
    number of seconds that the server asked to wait, or None."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = after


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds according to Retry-After (a number or a date) or an exhausted RateLimit; None if
    there is neither."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    if value:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):  # an impossible time zone or year
            return None
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (date - datetime.now(UTC)).total_seconds())
    limit = _RATE_LIMIT.search(headers.get("ratelimit", ""))
    return float(limit[1]) if limit else None


class Hub:
    """A hub, with an HTTP client that the end of an `async with` block closes. The token is sent to
    the hub's own host only: the client drops it when a redirect leads to another host."""

    def __init__(
        self, settings: HubSettings, on_wait: Callable[[str], object] = lambda note: None
    ) -> None:
        """`on_wait` is called with a note while a request waits to be retried, and then with an
        empty one. Raises ModelError if the endpoint, the token or a proxy in the environment is
        invalid."""
        self._policy, self._token, self._on_wait = settings.retry_policy, settings.token, on_wait
        self._endpoint = settings.endpoint.rstrip("/")
        try:
            url = httpx2.URL(self._endpoint)
        except (httpx2.InvalidURL, ValueError):
            url = httpx2.URL("")
        if not _is_valid(url):
            raise ModelError(
                "HF_ENDPOINT is not a web address", "set it to one that starts with https://"
            )
        self._origin = url.origin
        headers = {"Accept-Encoding": "identity", "User-Agent": "specchat"}
        if self._token is not None:
            # Otherwise the HTTP library's error would quote the header.
            if not (self._token.isascii() and self._token.isprintable() and " " not in self._token):
                raise ModelError("The stored token is damaged", "log in again with `hf auth login`")
            headers["Authorization"] = f"Bearer {self._token}"
        timeout = httpx2.Timeout(
            self._policy.stall_timeout, connect=self._policy.connect_timeout, pool=None
        )
        try:
            self._client = httpx2.AsyncClient(
                headers=headers,
                timeout=timeout,
                verify=settings.tls or True,
                follow_redirects=True,
                max_redirects=_MAX_REDIRECTS,
                event_hooks={"response": [self._check_redirect]},
            )
        except (httpx2.InvalidURL, ValueError):
            raise ModelError(
                "The proxy in the environment is not a web address",
                "correct HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or unset them",
            ) from None

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._client.__aexit__(*error)

    async def commit(self, repository: str) -> str:
        """The commit of the repository's main branch."""
        url = f"{self._endpoint}/api/models/{repository}/revision/main"
        answer, _ = await self._json(repository, url)
        sha = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(sha, str) or not COMMIT.fullmatch(sha):
            raise _unexpected_response()
        return sha

    async def search(self, words: str) -> list[Any]:
        """The hub's entries of MLX models whose names contain these words, most downloaded
        first."""
        url = (
            f"{self._endpoint}/api/models?search={quote(words, safe='')}&filter=mlx"
            f"&sort=downloads&direction=-1&limit={_MAX_RESULTS}&config=true"
        )
        answer, _ = await self._json("with these words", url)
        if not isinstance(answer, list):
            raise _unexpected_response()
        return answer

    async def files(self, repository: str, commit: str) -> tuple[ModelFile, ...]:
        """The files to download. Raises ModelError if the model contains code or is not usable."""
        entries: list[Any] = []
        url = f"{self._endpoint}/api/models/{repository}/tree/{commit}?recursive=True&expand=False"
        for _ in range(_MAX_PAGES):
            page, next_link = await self._json(repository, url)
            if not isinstance(page, list):
                raise _unexpected_response()
            entries += page
            if len(entries) > MAX_FILES:
                break
            if next_link is None:
                return files_to_download(repository, entries)
            next_url = _joined(httpx2.URL(url), next_link)
            if next_url.origin != self._origin:
                raise _unexpected_response()
            url = str(next_url)
        raise too_many_files(repository)

    async def config(self, repository: str, commit: str) -> dict[str, Any]:
        """The model's config.json. Raises ModelError if it is not a JSON object."""
        url = self._file_url(repository, commit, "config.json")
        body, _ = await self._body(repository, url, commit)
        with suppress(ValueError, RecursionError):
            config = _parsed(body)
            if isinstance(config, dict):
                return config
        raise ModelError(
            f"The config.json of {repository} is not a JSON object", "choose another model"
        )

    def file(
        self, repository: str, commit: str, path: str, bytes_range: str | None
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        """Request a file. The response has status 200, 206 or 416 and is not read yet. Raises
        RetryableError and ModelError."""
        url = self._file_url(repository, commit, path)
        return self._get(repository, url, commit, {"Range": bytes_range} if bytes_range else {})

    async def chunks(self, response: httpx2.Response) -> AsyncIterator[bytes]:
        """Yield the body of a response as it arrives. Raises RetryableError if it arrives too
        slowly."""
        clock, stall_timeout = asyncio.get_running_loop().time, self._policy.stall_timeout
        body = response.aiter_raw()
        deadline, received = clock() + stall_timeout, 0
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    chunk = await anext(body, b"")
            except TimeoutError:
                raise RetryableError("the connection stalled") from None
            except OSError:
                raise RetryableError("the connection broke") from None
            if not chunk:
                return
            yield chunk
            received += len(chunk)
            if received >= self._policy.min_bytes:
                deadline, received = clock() + stall_timeout, 0

    async def with_retries(
        self,
        attempt: Callable[[], Awaitable[T]],
        progressed: Callable[[], bool] = lambda: False,
    ) -> T:
        """Call `attempt`, again after each RetryableError, and return its result. Raises
        DownloadError after too many failures without progress, or if the hub asks for a longer wait
        than the policy allows."""
        failures = 0
        while True:
            try:
                return await attempt()
            except RetryableError as error:
                failures = 1 if progressed() else failures + 1
                await self._wait(error, failures)

    async def _wait(self, error: RetryableError, failures: int) -> None:
        if error.retry_after is not None and error.retry_after > self._policy.max_wait:
            raise DownloadError(
                f"The hub asks to wait {error.retry_after / 60:,.0f} minutes",
                "pull again after that time",
            )
        if failures >= self._policy.max_attempts:
            raise DownloadError(
                f"The download stopped after {failures} attempts ({error.reason})",
                "check the connection and pull again",
            )
        wait = self._policy.delay(failures, error.retry_after)
        self._on_wait(f"{error.reason}, retrying in {wait:.0f} s")
        await asyncio.sleep(wait)
        self._on_wait("")

    def _file_url(self, repository: str, commit: str, path: str) -> str:
        return f"{self._endpoint}/{repository}/resolve/{commit}/{quote(path)}"

    async def _json(self, repository: str, url: str) -> tuple[Any, str | None]:
        """A page of the API, and the address of the next page or None."""
        body, next_link = await self._body(repository, url)
        try:
            return _parsed(body), next_link
        except (ValueError, RecursionError):
            raise _unexpected_response() from None

    async def _body(
        self, repository: str, url: str, commit: str | None = None
    ) -> tuple[bytes, str | None]:
        """A whole body, and the link to the next page in its headers or None."""

        async def once() -> tuple[bytes, str | None]:
            body = bytearray()
            async with self._get(repository, url, commit) as response:
                if response.status_code != 200:
                    raise RetryableError(f"the hub answered with status {response.status_code}")
                async for chunk in self.chunks(response):
                    body += chunk
                    if len(body) > _MAX_BODY_BYTES:
                        raise _unexpected_response()
                return bytes(body), response.links.get("next", {}).get("url")

        return await self.with_retries(once)

    @asynccontextmanager
    async def _get(
        self,
        repository: str,
        url: str,
        commit: str | None,
        headers: dict[str, str] | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        """Follow redirects and return the last response. With `commit`, the hub must answer with
        this commit. Raises RetryableError, ModelError and DownloadError."""
        request = self._client.build_request(
            "GET", url, headers=headers, extensions={"commit": commit}
        )
        try:
            async with asyncio.timeout(self._policy.connect_timeout + self._policy.stall_timeout):
                response = await self._client.send(request, stream=True)
            try:
                if response.status_code not in (200, 206, 416):
                    raise self._failure(repository, response)
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise RetryableError("the hub sent the file compressed")
                yield response
            finally:
                await response.aclose()
        except (httpx2.TimeoutException, TimeoutError):
            raise RetryableError("the server does not answer") from None
        except httpx2.ConnectError:
            raise RetryableError("the server cannot be reached") from None
        except httpx2.ProxyError:
            raise RetryableError("the proxy refused the connection") from None
        except httpx2.TooManyRedirects:
            raise RetryableError("the server redirects in a circle") from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError):
            raise RetryableError("the connection broke") from None

    async def _check_redirect(self, response: httpx2.Response) -> None:
        """Check a response before the client follows its redirect. Called for each response."""
        commit, url = response.request.extensions["commit"], response.url
        sent_commit = response.headers.get("x-repo-commit")
        if commit is not None and url.origin == self._origin and sent_commit not in (None, commit):
            raise RetryableError("the hub answered with another commit")
        if not response.has_redirect_location:
            return
        target = _joined(url, response.headers["location"])
        if target.scheme != "https" and (target.scheme, url.scheme) != ("http", "http"):
            raise DownloadError(
                "The hub redirects to an unencrypted address",
                "check HF_ENDPOINT and the network, and pull again",
            )
        if not _is_valid(target):
            raise _unexpected_response()

    def _failure(self, repository: str, response: httpx2.Response) -> RetryableError | ModelError:
        status, code = response.status_code, response.headers.get("x-error-code", "")
        at_hub = response.url.origin == self._origin
        # Signed addresses of the storage expire. The next attempt asks the hub for a new one.
        if not at_hub or status in (408, 425, 429) or status >= 500 or status < 400:
            who = "the hub" if at_hub else "the storage server"
            problem = "got too many requests" if status == 429 else f"answered with status {status}"
            return RetryableError(f"{who} {problem}", retry_after(response.headers))
        if code == "GatedRepo" or status == 403:
            if self._token is None:
                return ModelError(
                    f"{repository} can only be downloaded by accounts with access",
                    "accept its terms on its page at the hub, log in with `hf auth login`, and"
                    " pull again",
                )
            return ModelError(
                f"Your account has no access to {repository}",
                "accept its terms on its page at the hub, check that the stored token may read it,"
                " and pull again",
            )
        if status == 401 and self._token is not None:
            return ModelError(
                f"The hub rejects the stored token, or {repository} does not exist",
                "check the model's name, and log in again with `hf auth login`",
            )
        if code == "RevisionNotFound" or code == "EntryNotFound":
            return DownloadError(
                f"{repository} changed on the hub during the download; what is complete is kept",
                "pull again",
            )
        if status in (401, 404, 410):
            return ModelError(
                f"The hub has no model {repository}, or it is private",
                "check its name, or log in with `hf auth login`",
            )
        return DownloadError(f"The hub answered with status {status}", "try again later")


def _parsed(body: bytes) -> Any:
    """Raises ValueError, also for JSON that would fill the memory, and RecursionError."""
    text = body.decode()
    if is_too_much(text, *_MAX_JSON):
        raise ValueError("too many values")
    return json.loads(text)


def _joined(url: httpx2.URL, address: str) -> httpx2.URL:
    """Resolve `address` relative to `url`."""
    try:
        return url.join(address)
    except (httpx2.InvalidURL, ValueError):
        raise _unexpected_response() from None


def _is_valid(url: httpx2.URL) -> bool:
    """Whether scheme, host and port are valid. The HTTP library accepts any port."""
    port = 1 if url.port is None else url.port
    return url.scheme in ("http", "https") and bool(url.host) and 0 < port < 2**16


def _unexpected_response() -> DownloadError:
    return DownloadError(
        "Unexpected response (a login page?)",
        "log in to the network in a browser, check HF_ENDPOINT, and try again",
    )


# ----------------------------------------------------------------- requests that a user waits for


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model at the hub: its config.json and the files to download."""

    repository: str
    config: dict[str, Any]
    files: tuple[ModelFile, ...]


def fetch_hub_model(repository: str, settings: HubSettings) -> HubModel:
    """Ask the hub about a model. Blocks. Raises ModelError if the model does not exist or cannot be
    used, or if the hub cannot be reached."""
    check_repository(repository)

    async def found() -> HubModel:
        async with Hub(_impatient(settings)) as hub:
            commit = await hub.commit(repository)
            files = await hub.files(repository, commit)
            return HubModel(repository, await hub.config(repository, commit), files)

    try:
        model = asyncio.run(found())
    except DownloadError:
        raise ModelError(
            f"The hub could not be asked about {repository}",
            "check the connection, or choose a model from `specchat models search`",
        ) from None
    refuse_draft_layers(model.config)
    return model


def search_hub(words: str, settings: HubSettings) -> tuple[str, ...]:
    """Search for repositories of MLX models whose names contain these words, most downloaded first,
    without those that only have MTP layers. Blocks. Raises ModelError if the hub cannot be
    reached."""

    async def found() -> list[Any]:
        async with Hub(_impatient(settings)) as hub:
            return await hub.search(words)

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


def _impatient(settings: HubSettings) -> HubSettings:
    """The same settings with at most two attempts, because the user waits for the answer."""
    policy = settings.retry_policy
    return replace(settings, retry_policy=replace(policy, max_attempts=min(policy.max_attempts, 2)))
