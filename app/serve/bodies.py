"""From the bytes of a request to what its route takes. Reading a large one takes seconds, so this
runs on a thread, and ends at the first mistake."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from app.serve.requests import BadRequest

MAX_VALUES, MAX_CONTAINERS = 1_000_000, 100_000
"""Values in a request, and lists and objects among them: JSON is parsed in one go, during which no
other thread runs."""
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Escaped in JSON; most are halves of a pair."""
_SCHEMAS = "#/components/schemas/{model}"
Body = TypeVar("Body", bound=BaseModel)


def reader(model: type[Body]) -> Callable[[Request], Awaitable[Body]]:
    """A dependency of a route that takes `model`."""

    async def read(request: Request) -> Body:
        return await asyncio.to_thread(read_body, model, await request.body())

    return read


def read_body(model: type[Body], body: bytes) -> Body:
    """Raises BadRequest."""
    value = _parse(body)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:200]
        message = str(first["msg"]).removeprefix("Value error, ")[:300]
        raise BadRequest(f"{where}: {message}" if where else message) from None


def _parse(body: bytes) -> dict[str, Any]:
    """Raises BadRequest, also for unpaired surrogates, which can neither be encoded nor stored."""
    problem = "The request is not JSON in UTF-8: send one object."
    try:
        text = body.decode("utf-8-sig")
        if not _is_too_much(text):
            value = json.loads(text)
            if _SURROGATE.search(text):
                json.dumps(value, ensure_ascii=False).encode()
            if isinstance(value, dict):
                return value
        else:
            problem = (
                f"The request has more than {MAX_VALUES:,} values, or {MAX_CONTAINERS:,} lists and"
                " objects: send less."
            )
    except UnicodeEncodeError:
        problem = "The request has half of a surrogate pair, which is not valid Unicode."
    except RecursionError:
        problem = "The request is nested too deeply."
    except ValueError:
        pass
    raise BadRequest(problem)


def _is_too_much(text: str) -> bool:
    if len(text) <= MAX_CONTAINERS:
        return False
    rest = _STRING.sub("", text)
    containers = rest.count("[") + rest.count("{")
    return containers > MAX_CONTAINERS or rest.count(",") > MAX_VALUES


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """What a route's `openapi_extra` says of the body that `reader` reads."""
    schema = {"$ref": _SCHEMAS.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def openapi(app: FastAPI, models: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    """The schema of all routes, with the models that they take."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, bodies = models_json_schema(
            [(each, "validation") for each in models], ref_template=_SCHEMAS
        )
        found.setdefault("components", {}).setdefault("schemas", {}).update(bodies["$defs"])
        app.openapi_schema = found
    return app.openapi_schema
