"""A client of the hub's public API: a model's commit, its list of files, and their bytes.

It needs three requests: `/api/models/R/revision/main` for the commit, the paged
`/api/models/R/tree/COMMIT?recursive=True`, and `/R/resolve/COMMIT/PATH`, which redirects large
files to a storage host with a signed address. Of what a server sends, only its status is shown.
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

_MAX_REDIRECTS = 8
_MAX_PAGE_BYTES = 32 << 20
"""For one page of the API; a page of 1,000 files has about 300 KB."""
_MAX_PAGES = 20
_MAX_REDIRECT_BYTES = 1 << 16
"""Of a redirect's body, which is read so that its connection can be reused."""
LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=120.0)
"""A large file takes many requests, so connections are kept alive longer than the usual five
seconds, which one segment may take."""

T = TypeVar("T")


def hub_client(policy: RetryPolicy, tls: ssl.SSLContext | None) -> httpx2.AsyncClient:
    """The HTTP client. Raises ModelError for an invalid proxy."""
    timeout = httpx2.Timeout(policy.stall_timeout, connect=policy.connect_timeout, pool=None)
    try:
        return httpx2.AsyncClient(timeout=timeout, verify=tls or True, limits=LIMITS)
    except (httpx2.InvalidURL, ValueError):
        raise ModelError(
            "The proxy in the environment is not a web address",
            "correct HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or unset them",
        ) from None


class Hub:
    """One hub, reached through one HTTP client. The token is only sent to the hub's own scheme,
    host and port."""

    def __init__(
        self, client: httpx2.AsyncClient, endpoint: str, token: str | None, policy: RetryPolicy
    ) -> None:
        """Raises ModelError when `endpoint` or `token` is invalid."""
        self._client = client
        self._endpoint = endpoint.rstrip("/")
        try:
            url = httpx2.URL(self._endpoint)
        except (httpx2.InvalidURL, ValueError):
            url = httpx2.URL("")
        if not _is_valid(url):
            raise ModelError(
                "HF_ENDPOINT is not a web address", "set it to one that starts with https://"
            )
        self._origin = _origin(url)
        # The HTTP library would quote a header with other characters in its error.
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise ModelError("The stored token is damaged", "log in again with `hf auth login`")
        self._token = token
        self._policy = policy
        self.on_wait: Callable[[str], object] = lambda note: None

    async def commit(self, repository: str) -> str:
        """The commit of the repository's main branch."""
        url = f"{self._endpoint}/api/models/{repository}/revision/main"
        answer, _ = await self._json(repository, url)
        sha = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(sha, str) or not COMMIT.fullmatch(sha):
            raise _not_the_hub()
        return sha

    async def search(self, words: str, limit: int) -> list[Any]:
        """The hub's entries of MLX models with these words in their names, most downloaded
        first."""
        url = (
            f"{self._endpoint}/api/models?search={quote(words, safe='')}&filter=mlx"
            f"&sort=downloads&direction=-1&limit={limit}&config=true"
        )
        answer, _ = await self._json("with these words", url)
        if not isinstance(answer, list):
            raise _not_the_hub()
        return answer

    async def tree(self, repository: str, commit: str) -> list[Any]:
        """The hub's entries of all files in the repository."""
        entries: list[Any] = []
        url = f"{self._endpoint}/api/models/{repository}/tree/{commit}?recursive=True&expand=False"
        for _ in range(_MAX_PAGES):
            page, next_url = await self._json(repository, url)
            if not isinstance(page, list):
                raise _not_the_hub()
            entries += page
            if len(entries) > MAX_FILES:
                raise too_many_files(repository)
            if next_url is None:
                return entries
            url = next_url
        raise too_many_files(repository)

    @asynccontextmanager
    async def file(
        self, repository: str, commit: str, path: str, bytes_range: str | None
    ) -> AsyncIterator[httpx2.Response]:
        """The response for a file, with status 200, 206 or 416, and not yet read. Raises
        RetryableError, ModelError."""
        url = f"{self._endpoint}/{repository}/resolve/{commit}/{quote(path)}"
        headers = {"Range": bytes_range} if bytes_range else {}
        async with self._get(repository, url, headers, commit) as response:
            encoding = response.headers.get("content-encoding", "identity")
            if encoding != "identity":
                raise RetryableError("the hub sent the file compressed")
            yield response

    async def with_retries(self, action: Callable[[], Awaitable[T]]) -> T:
        """The result of `action`, retried on RetryableError. DownloadError when it never
        succeeds."""
        for failures in range(1, self._policy.max_attempts + 1):
            try:
                return await action()
            except RetryableError as retry:
                await self.backoff(retry, failures)
        raise AssertionError("backoff raises at the last attempt")

    async def backoff(self, retry: RetryableError, failures: int) -> None:
        """Wait before the next attempt. DownloadError after too many, or when the hub asks for a
        longer wait than the policy allows."""
        if retry.retry_after is not None and retry.retry_after > self._policy.max_wait:
            raise DownloadError(
                f"The hub asks to wait {retry.retry_after / 60:,.0f} minutes; what was downloaded"
                " is saved",
                "pull again after that",
            )
        if failures >= self._policy.max_attempts:
            raise DownloadError(
                f"The download stopped after {failures} attempts ({retry.reason}); what was"
                " downloaded is saved",
                "check the connection and pull again",
            )
        wait = self._policy.delay(failures, retry.retry_after)
        self.on_wait(f"{retry.reason}, retrying in {wait:.0f} s")
        await asyncio.sleep(wait)
        self.on_wait("")

    async def _json(self, repository: str, url: str) -> tuple[Any, str | None]:
        """A page of the API, and the URL of the next page, if there is one."""

        async def once() -> tuple[bytes, str | None]:
            async with self._get(repository, url, {}) as response:
                body = await self.read_body(response, _MAX_PAGE_BYTES)
                return body, response.links.get("next", {}).get("url")

        body, next_url = await self.with_retries(once)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise _not_the_hub() from None
        if next_url is not None:
            target = _joined(httpx2.URL(url), next_url)
            if _origin(target) != self._origin:
                raise _not_the_hub()
            next_url = str(target)
        return answer, next_url

    async def read_body(self, response: httpx2.Response, max_bytes: int) -> bytes:
        """The body of a response with status 200. Raises RetryableError, DownloadError."""
        if response.status_code != 200:
            raise RetryableError(f"the hub answered with status {response.status_code}")
        body = bytearray()
        async for chunk in self._policy.with_stall_timeout(response.aiter_raw()):
            body += chunk
            if len(body) > max_bytes:
                raise _not_the_hub()
        return bytes(body)

    @asynccontextmanager
    async def _get(
        self, repository: str, url: str, headers: dict[str, str], commit: str | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """The response after all redirects. Raises RetryableError, ModelError, DownloadError."""
        try:
            async with AsyncExitStack() as stack:
                yield await self._follow_redirects(stack, repository, url, headers, commit)
        except httpx2.TimeoutException:
            raise RetryableError("the server does not answer") from None
        except httpx2.ConnectError:
            raise RetryableError("the server cannot be reached") from None
        except httpx2.ProxyError:
            raise RetryableError("the proxy refused the connection") from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError):
            raise RetryableError("the connection broke") from None
        except httpx2.InvalidURL:
            raise _not_the_hub() from None

    async def _follow_redirects(
        self,
        stack: AsyncExitStack,
        repository: str,
        address: str,
        headers: dict[str, str],
        commit: str | None,
    ) -> httpx2.Response:
        url = httpx2.URL(address)
        for _ in range(_MAX_REDIRECTS):
            at_hub = _origin(url) == self._origin
            response = await self._send(url, headers, at_hub)
            stack.push_async_callback(response.aclose)
            sent_commit = response.headers.get("x-repo-commit")
            if at_hub and commit is not None and sent_commit not in (None, commit):
                raise RetryableError("the hub answered with another commit")
            if not response.has_redirect_location:
                if response.status_code not in (200, 206, 416):
                    raise self._failure(repository, response, at_hub)
                return response
            target = _joined(url, response.headers["location"])
            if target.scheme not in ("http", "https") or (
                url.scheme == "https" and target.scheme == "http"
            ):
                raise DownloadError(
                    "The hub redirects to an unencrypted address",
                    "check HF_ENDPOINT and the network, and pull again",
                )
            if not _is_valid(target):
                raise _not_the_hub()
            await self._drain(response)
            url = target
        raise RetryableError("the server redirects in a circle")

    async def _drain(self, response: httpx2.Response) -> None:
        """Read the body of a redirect, so that its connection goes back to the pool."""
        read = 0
        with suppress(httpx2.HTTPError, httpx2.StreamError, OSError, RetryableError):
            async for chunk in self._policy.with_stall_timeout(response.aiter_raw()):
                read += len(chunk)
                if read > _MAX_REDIRECT_BYTES:
                    break
        await response.aclose()

    async def _send(
        self, url: httpx2.URL, headers: dict[str, str], at_hub: bool
    ) -> httpx2.Response:
        defaults = {"Accept-Encoding": "identity", "User-Agent": "specchat"}
        if at_hub and self._token is not None:
            defaults["Authorization"] = f"Bearer {self._token}"
        request = self._client.build_request("GET", url, headers=defaults | headers)
        try:
            async with asyncio.timeout(self._policy.connect_timeout + self._policy.stall_timeout):
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
            problem = "got too many requests" if status == 429 else f"answered with status {status}"
            return RetryableError(f"{who} {problem}", after)
        if not at_hub:
            # Signed addresses expire: the next attempt asks the hub for a new one.
            return RetryableError(f"the storage server answered with status {status}", after)
        if code == "GatedRepo" or status == 403:
            if self._token is None:
                return ModelError(
                    f"{repository} is only open to accounts with access",
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
                f"{repository} changed at the hub meanwhile; what was downloaded is saved",
                "pull again",
            )
        if status in (401, 404, 410):
            return ModelError(
                f"The hub has no model {repository}, or it is private",
                "check its name, or log in with `hf auth login`",
            )
        return DownloadError(f"The hub answered with status {status}", "try again later")


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    port = url.port or {"http": 80, "https": 443}.get(url.scheme, 0)
    return url.scheme, url.host.lower(), port


def _joined(url: httpx2.URL, address: str) -> httpx2.URL:
    """`address`, relative to `url`."""
    try:
        return url.join(address)
    except (httpx2.InvalidURL, ValueError):
        raise _not_the_hub() from None


def _is_valid(url: httpx2.URL) -> bool:
    """Whether scheme, host and port are valid; the HTTP library accepts any port."""
    port = 1 if url.port is None else url.port
    return url.scheme in ("http", "https") and bool(url.host) and 0 < port < 2**16


def _not_the_hub() -> DownloadError:
    return DownloadError(
        "The answer is not from the hub",
        "check HF_ENDPOINT and the connection (a login page may be in the way), and pull again",
    )
