"""The application that serves all APIs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from app.extras.serve.answers import (
    RETRY_SECONDS,
)
from app.extras.serve.apis import apis, error_body
from app.extras.serve.fields import RequestError
from app.extras.serve.http import FAULT, REQUEST_IDS, Access, App, RequestLimits
from app.extras.serve.requests import (
    openapi,
)
from app.extras.serve.server import Server
from app.models.cache import default_cache


class NoSuchModel(RequestError):
    status = 404

    def __init__(self, name: str, loaded: str) -> None:
        super().__init__(
            f"{name[:80]!r} is not installed: use {loaded}, which answers requests for any model."
        )


def make_app(server: Server, access: Access) -> App:
    """An ASGI application. Its runner starts and stops the server's queue."""
    app = FastAPI(title="specchat", version=version("specchat"), docs_url=None, redoc_url=None)
    _add_errors(app)
    _add_routes(app, server)
    bodies = tuple(body for api in apis() for body in api.BODIES)
    app.openapi = lambda: openapi(app, bodies)  # type: ignore[method-assign]
    limited = RequestLimits(app, access)
    if access.token is None:
        return limited
    # Pages of any origin may read answers, because requests need the API key, and a browser sends
    # no key that the page does not know.
    allowed: dict[str, Any] = {"allow_methods": ["GET", "POST"], "allow_private_network": True}
    allowed["expose_headers"] = REQUEST_IDS
    return CORSMiddleware(limited, allow_origins=["*"], allow_headers=["*"], **allowed)


def _add_errors(app: FastAPI) -> None:
    def reply(request: Request, status: int, message: str, code: str | None = None) -> JSONResponse:
        body = error_body(request.url.path, message, status, code)
        headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else None
        return JSONResponse(body, status, headers)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        known = {404: "There is no such route.", 405: "This route does not allow this method."}
        return reply(request, error.status_code, known.get(error.status_code, str(error.detail)))

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> JSONResponse:
        return reply(request, error.status, str(error), error.code)

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> JSONResponse:
        return reply(request, 500, FAULT)


def _add_routes(app: FastAPI, server: Server) -> None:
    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "model": server.pair.model, "waiting": server.queue.waiting}

    @app.get("/")
    @app.get("/v1")
    async def about() -> dict[str, Any]:
        return {
            "name": "specchat",
            "version": version("specchat"),
            "about": "A server of local models with OpenAI- and Anthropic-compatible APIs."
            " GET /openapi.json, with the API key, describes its routes.",
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        listed = {"has_more": False, "first_id": server.pair.model, "last_id": server.pair.model}
        return {
            "object": "list",
            "data": [_model(server.pair.model, server.pair.loaded_at)],
            **listed,
        }

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name.rpartition("/")[2].lower() != server.pair.model.rpartition("/")[2].lower():
            return await asyncio.to_thread(_unloaded, name, server.pair.model)
        return _model(server.pair.model, server.pair.loaded_at)

    for api in apis():
        api.add_routes(app, server)


def _model(name: str, created: int) -> dict[str, Any]:
    """A model's entry, in one object for both APIs."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "specchat",
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
    }


def _unloaded(name: str, loaded: str) -> dict[str, Any]:
    """The entry of a model that is installed but not loaded. Raises NoSuchModel."""
    known = {each.casefold(): each for each in default_cache().names()}
    found = known.get(name.casefold())
    folder = found and default_cache().snapshot_folder(found)
    if not found or not folder:
        raise NoSuchModel(name, loaded)
    return _model(found, int(folder.stat().st_mtime)) | {"state": "not-loaded"}
