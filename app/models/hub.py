"""The hub's public API: which commit, which files, and their bytes.

Three requests are all it takes: `/api/models/R/revision/main` for the commit, its paged
`/api/models/R/tree/COMMIT?recursive=True`, and `/R/resolve/COMMIT/PATH`, which redirects large
files to a storage host with a signed address. Nothing a server says is shown but its status.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2

from app.models.errors import DownloadError, ModelError
from app.models.file_filter import MAX_FILES, too_many_files
from app.models.manifest import COMMIT
from app.models.retry import RetryableError, RetryPolicy, retry_after

_REDIRECTS = 8
_LONGEST_ANSWER = 32 << 20
"""Bytes of one page of the API; a page of 1,000 files is about 300 KB."""
_PAGES = 20
_SHORT = 1 << 16
"""Bytes of a redirect's own text, which is read so that its connection can be used again."""
LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=120.0)
"""A large file comes in many requests: setting a connection up for each would cost more than some
of them take, and a segment may take longer than the usual five seconds."""

T = TypeVar("T")


def hub_client(patience: RetryPolicy, tls: ssl.SSLContext | None) -> httpx2.AsyncClient:
    """What connections are made with. Raises ModelError for a proxy that cannot be used."""
    timeout = httpx2.Timeout(patience.stall_timeout, connect=patience.connect_timeout, pool=None)
    try:
        return httpx2.AsyncClient(timeout=timeout, verify=tls or True, limits=LIMITS)
    except (httpx2.InvalidURL, ValueError):
        raise ModelError(
            "The proxy that the environment names is no web address",
            "correct HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or unset them",
        ) from None


class Hub:
    """One hub, spoken to over one client. The token goes to the hub's own address alone: same
    scheme, host and port."""

    def __init__(
        self, client: httpx2.AsyncClient, endpoint: str, token: str | None, patience: RetryPolicy
    ) -> None:
        """Raises ModelError when `endpoint` or `token` cannot be used."""
        self._client = client
        self._endpoint = endpoint.rstrip("/")
        try:
            url = httpx2.URL(self._endpoint)
        except (httpx2.InvalidURL, ValueError):
            url = httpx2.URL("")
        if not _reachable(url):
            raise ModelError(
                "HF_ENDPOINT is no web address", "set it to one that begins with https://"
            )
        self._origin = _origin(url)
        # A header with other characters in it would be quoted in the error of the HTTP library.
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise ModelError("The stored token is damaged", "log in again with `hf auth login`")
        self._token = token
        self._patience = patience
        self.on_wait: Callable[[str], object] = lambda note: None

    async def commit(self, repository: str) -> str:
        """The commit that the repository's main branch is at."""
        url = f"{self._endpoint}/api/models/{repository}/revision/main"
        answer, _ = await self._json(repository, url)
        sha = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(sha, str) or not COMMIT.fullmatch(sha):
            raise _no_hub()
        return sha

    async def search(self, words: str, most: int) -> list[Any]:
        """Models converted for MLX that mention these words, the most downloaded first, as the hub
        sent them."""
        url = (
            f"{self._endpoint}/api/models?search={quote(words, safe='')}&filter=mlx"
            f"&sort=downloads&direction=-1&limit={most}"
        )
        answer, _ = await self._json("of these words", url)
        if not isinstance(answer, list):
            raise _no_hub()
        return answer

    async def tree(self, repository: str, commit: str) -> list[Any]:
        """The entries of the repository's recursive tree, as the hub sent them."""
        entries: list[Any] = []
        url = f"{self._endpoint}/api/models/{repository}/tree/{commit}?recursive=True&expand=False"
        for _ in range(_PAGES):
            page, following = await self._json(repository, url)
            if not isinstance(page, list):
                raise _no_hub()
            entries += page
            if len(entries) > MAX_FILES:
                raise too_many_files(repository)
            if following is None:
                return entries
            url = following
        raise too_many_files(repository)

    @asynccontextmanager
    async def file(
        self, repository: str, commit: str, path: str, bytes_range: str | None
    ) -> AsyncIterator[httpx2.Response]:
        """A file's answer with status 200, 206 or 416, not yet read. Raises Retry, ModelError."""
        url = f"{self._endpoint}/{repository}/resolve/{commit}/{quote(path)}"
        headers = {"Range": bytes_range} if bytes_range else {}
        async with self._get(repository, url, headers, commit) as response:
            encoding = response.headers.get("content-encoding", "identity")
            if encoding != "identity":
                raise RetryableError("the hub sent the file compressed")
            yield response

    async def with_retries(self, action: Callable[[], Awaitable[T]]) -> T:
        """The result of `action`, tried again on Retry. DownloadError when it never succeeds."""
        for failures in range(1, self._patience.max_attempts + 1):
            try:
                return await action()
            except RetryableError as retry:
                await self.backoff(retry, failures)
        raise AssertionError("rest raises at the last try")

    async def backoff(self, retry: RetryableError, failures: int) -> None:
        """Wait before the next try. DownloadError after too many, or when the hub asks for more
        than one waits for here."""
        if retry.retry_after is not None and retry.retry_after > self._patience.max_wait:
            raise DownloadError(
                f"The hub asks to wait {retry.retry_after / 60:,.0f} minutes, and what was"
                " fetched is kept",
                "pull again after that",
            )
        if failures >= self._patience.max_attempts:
            raise DownloadError(
                f"The download stopped after {failures} tries, {retry.reason}, and what was"
                " fetched is kept",
                "check the connection and pull again",
            )
        wait = self._patience.delay(failures, retry.retry_after)
        self.on_wait(f"{retry.reason}, trying again in {wait:.0f} s")
        await asyncio.sleep(wait)
        self.on_wait("")

    async def _json(self, repository: str, url: str) -> tuple[Any, str | None]:
        """A page of the API and the address of the next one, if there is one."""

        async def once() -> tuple[bytes, str | None]:
            body = bytearray()
            async with self._get(repository, url, {}) as response:
                if response.status_code != 200:
                    raise RetryableError(f"the hub answered with status {response.status_code}")
                async for chunk in self._patience.with_stall_timeout(response.aiter_raw()):
                    body += chunk
                    if len(body) > _LONGEST_ANSWER:
                        raise _no_hub()
                return bytes(body), response.links.get("next", {}).get("url")

        body, following = await self.with_retries(once)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise _no_hub() from None
        if following is not None:
            target = _joined(httpx2.URL(url), following)
            if _origin(target) != self._origin:
                raise _no_hub()
            following = str(target)
        return answer, following

    @asynccontextmanager
    async def _get(
        self, repository: str, url: str, headers: dict[str, str], commit: str | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """The answer after all redirects. Raises Retry, ModelError, DownloadError."""
        try:
            async with AsyncExitStack() as stack:
                yield await self._followed(stack, repository, url, headers, commit)
        except httpx2.TimeoutException:
            raise RetryableError("the server does not answer") from None
        except httpx2.ConnectError:
            raise RetryableError("the server cannot be reached") from None
        except httpx2.ProxyError:
            raise RetryableError("the proxy refuses") from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError):
            raise RetryableError("the connection broke") from None
        except httpx2.InvalidURL:
            raise _no_hub() from None

    async def _followed(
        self,
        stack: AsyncExitStack,
        repository: str,
        address: str,
        headers: dict[str, str],
        commit: str | None,
    ) -> httpx2.Response:
        url = httpx2.URL(address)
        for _ in range(_REDIRECTS):
            at_hub = _origin(url) == self._origin
            response = await self._sent(url, headers, at_hub)
            stack.push_async_callback(response.aclose)
            told = response.headers.get("x-repo-commit")
            if at_hub and commit is not None and told is not None and told != commit:
                raise RetryableError("the hub answered with another commit")
            if not response.has_redirect_location:
                if response.status_code not in (200, 206, 416):
                    raise self._failure(repository, response, at_hub)
                return response
            following = _joined(url, response.headers["location"])
            if following.scheme not in ("http", "https") or (
                url.scheme == "https" and following.scheme == "http"
            ):
                raise DownloadError(
                    "The hub redirects to an address that is not encrypted",
                    "check HF_ENDPOINT and the network, and pull again",
                )
            if not _reachable(following):
                raise _no_hub()
            await self._empty(response)
            url = following
        raise RetryableError("the server redirects in a circle")

    async def _empty(self, response: httpx2.Response) -> None:
        """Let the connection of an answer that says nothing go back to where it is taken from."""
        read = 0
        with suppress(httpx2.HTTPError, httpx2.StreamError, OSError, RetryableError):
            async for chunk in self._patience.with_stall_timeout(response.aiter_raw()):
                read += len(chunk)
                if read > _SHORT:
                    break
        await response.aclose()

    async def _sent(
        self, url: httpx2.URL, headers: dict[str, str], at_hub: bool
    ) -> httpx2.Response:
        own = {"Accept-Encoding": "identity", "User-Agent": "specchat"}
        if at_hub and self._token is not None:
            own["Authorization"] = f"Bearer {self._token}"
        request = self._client.build_request("GET", url, headers=own | headers)
        try:
            async with asyncio.timeout(
                self._patience.connect_timeout + self._patience.stall_timeout
            ):
                return await self._client.send(request, stream=True, follow_redirects=False)
        except TimeoutError:
            raise RetryableError("the server does not answer") from None

    def _failure(
        self, repository: str, response: httpx2.Response, at_hub: bool
    ) -> RetryableError | ModelError:
        status, code = response.status_code, response.headers.get("x-error-code", "")
        after = retry_after(response.headers)
        if status in (408, 425, 429) or status >= 500 or status < 400:
            who = "the hub" if at_hub else "the storage server"
            busy = "has had too many requests" if status == 429 else f"answers with status {status}"
            return RetryableError(f"{who} {busy}", after)
        if not at_hub:
            # Signed addresses expire: the next try asks the hub for a fresh one.
            return RetryableError(f"the storage server refuses with status {status}", after)
        if code == "GatedRepo" or status == 403:
            if self._token is None:
                return ModelError(
                    f"{repository} is open only to accounts that were granted access",
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
                f"The hub refuses the stored token, or {repository} is not there",
                "check the model's name, and log in again with `hf auth login`",
            )
        if code == "RevisionNotFound" or code == "EntryNotFound":
            return DownloadError(
                f"{repository} has changed at the hub meanwhile, and what was fetched is kept",
                "pull again",
            )
        if status in (401, 404, 410):
            return ModelError(
                f"The hub has no model {repository}, or it is private",
                "check its name, or log in with `hf auth login`",
            )
        return DownloadError(f"The hub refuses with status {status}", "try again later")


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    port = url.port or {"http": 80, "https": 443}.get(url.scheme, 0)
    return url.scheme, url.host.lower(), port


def _joined(url: httpx2.URL, address: str) -> httpx2.URL:
    """Where a server sends us from `url`."""
    try:
        return url.join(address)
    except (httpx2.InvalidURL, ValueError):
        raise _no_hub() from None


def _reachable(url: httpx2.URL) -> bool:
    """Whether a connection could be made; the HTTP library takes any port."""
    port = 1 if url.port is None else url.port
    return url.scheme in ("http", "https") and bool(url.host) and 0 < port < 2**16


def _no_hub() -> DownloadError:
    return DownloadError(
        "What answers is not the hub",
        "check HF_ENDPOINT and the connection (a login page may be in the way), and pull again",
    )
