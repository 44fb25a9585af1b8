"""`/api/…`: Ollama's API, for its clients."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from starlette.responses import Response

import kvarn
from kvarn.answers.ollama.embeddings import start_embed
from kvarn.answers.ollama.models import listed, running, served_name, shown
from kvarn.answers.ollama.operation import OllamaRun, start_ollama_chat, start_ollama_generate
from kvarn.catalog.models import ServedModel
from kvarn.gateway.answer import event_stream, json_response, json_when_done
from kvarn.gateway.dependencies import GatewayDep, PrincipalDep, RecordDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.routes.models import find_model, visible_models
from kvarn.gateway.state import Gateway
from kvarn.wire.ollama.answers import (
    Answer,
    ChatAnswer,
    EmbedAnswer,
    EmbeddingsAnswer,
    GenerateAnswer,
    ModelsAnswer,
    Progress,
    ShowAnswer,
    Version,
)
from kvarn.wire.ollama.dialect import line
from kvarn.wire.ollama.requests import ChatRequest, EmbeddingsRequest, EmbedRequest, GenerateRequest, ModelRequest
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.models import Model

router = json_router("/api", "ollama")

OLLAMA_VERSION = "0.13.0"  # the version whose API this is

_STREAMS = {"responses": {"200": {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}}}
_GET_A_MODEL = (
    "Models come from the server's configuration (`models`, or `kvarn serve MODEL`) or are deployed by an "
    "administrator (POST /v1/organization/deployments)"
)


@router.post("/chat", summary="Answer a conversation, in Ollama's words", openapi_extra=_STREAMS)
async def ollama_chat(gateway: GatewayDep, record: RecordDep, body: ChatRequest) -> Annotated[Response, ChatAnswer]:
    """Answer messages, as lines of JSON or, where `stream` is false, as one object."""
    return _answered(await start_ollama_chat(gateway, record, body), body.streams)


@router.post("/generate", summary="Answer a prompt, in Ollama's words", openapi_extra=_STREAMS)
async def ollama_generate(
    gateway: GatewayDep, record: RecordDep, body: GenerateRequest
) -> Annotated[Response, GenerateAnswer]:
    """Answer one prompt, as lines of JSON or, where `stream` is false, as one object."""
    return _answered(await start_ollama_generate(gateway, record, body), body.streams)


def _answered(made: OllamaRun | Answer, streams: bool) -> Response:
    if isinstance(made, Answer):
        return _line(made) if streams else json_response(made)
    return event_stream(made.stream()) if streams else json_when_done(made.collect(), made.held)


def _line(answer: object) -> Response:
    return Response(line(answer), media_type="application/x-ndjson")


@router.post("/embed", summary="Embed texts, in Ollama's words")
async def ollama_embed(gateway: GatewayDep, record: RecordDep, body: EmbedRequest) -> Annotated[Response, EmbedAnswer]:
    """Vectors of length 1 for one text or several."""
    return json_when_done(*await start_embed(gateway, record, body))


@router.post("/embeddings", summary="Embed a text, in Ollama's older words")
async def ollama_embeddings(
    gateway: GatewayDep, record: RecordDep, body: EmbeddingsRequest
) -> Annotated[Response, EmbeddingsAnswer]:
    work, held = await start_embed(gateway, record, EmbedRequest(model=body.model, input=body.prompt))

    async def first() -> EmbeddingsAnswer:
        embeddings = (await work).embeddings
        return EmbeddingsAnswer(embedding=embeddings[0] if embeddings else [])

    return json_when_done(first(), held)


@router.get("/tags", summary="List the served models, in Ollama's words")
async def ollama_tags(gateway: GatewayDep, principal: PrincipalDep) -> ModelsAnswer:
    """Every model and adapter in the key's scope."""
    models = visible_models(gateway, principal)
    return ModelsAnswer(models=[listed(each, _served(gateway, each)) for each in models])


@router.get("/ps", summary="List the models that are ready, in Ollama's words")
async def ollama_running(gateway: GatewayDep, principal: PrincipalDep) -> ModelsAnswer:
    """Those that take requests now."""
    models = visible_models(gateway, principal)
    return ModelsAnswer(models=[running(each, _served(gateway, each)) for each in models if each.ready])


@router.post("/show", summary="Describe one model, in Ollama's words")
async def ollama_show(gateway: GatewayDep, record: RecordDep, body: ModelRequest) -> ShowAnswer:
    """One model: what kind it is, what it can do, its template."""
    model = _find(gateway, record, body)
    return shown(model, _served(gateway, model))


@router.get("/version", summary="The version of Ollama's API")
async def ollama_version() -> Version:
    return Version(version=OLLAMA_VERSION, kvarn=kvarn.__version__)


@router.post("/pull", summary="Make sure that a model is served", openapi_extra=_STREAMS)
async def ollama_pull(gateway: GatewayDep, record: RecordDep, body: ModelRequest) -> Annotated[Response, Progress]:
    """Success for a model that is served; nothing is downloaded for a client."""
    try:
        _find(gateway, record, body)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        raise ApiError(
            error.status, f"{error.message} Nothing is pulled here. {_GET_A_MODEL}.", code=error.code
        ) from None
    done = Progress(status="success")
    if body.stream is False:
        return json_response(done)
    return Response(line(Progress(status="pulling manifest")) + line(done), media_type="application/x-ndjson")


@router.post("/push", include_in_schema=False)
@router.post("/create", include_in_schema=False)
@router.post("/copy", include_in_schema=False)
@router.delete("/delete", include_in_schema=False)
@router.post("/blobs/{digest}", include_in_schema=False)
async def ollama_change() -> None:
    """Models are not made, copied, pushed or deleted by clients: the answer says what to do instead."""
    instead = f"{_GET_A_MODEL}; a name for a model is one of its `aliases`."
    message = f"Clients do not make, copy, push or delete models of this server. {instead}"
    raise ApiError(400, message, code="unsupported_operation")


@router.get("/blobs/{digest}", include_in_schema=False)
async def ollama_blob(digest: str) -> None:
    """No blob is kept here, as a client finds out before it sends one."""
    raise ApiError(404, f"There are no blobs here. {_GET_A_MODEL}.", code="not_found")


def _find(gateway: Gateway, record: RecordDep, body: ModelRequest) -> Model:
    if not body.model_name:
        raise invalid_request("Missing required parameter: model", "model", "missing_required_parameter")
    return find_model(gateway, record, served_name(gateway, body.model_name))


def _served(gateway: Gateway, model: Model) -> ServedModel:
    """Find the model that runs: an adapter runs on its parent, a route leads to its target."""
    found = gateway.models.find_adapter(model.id) or gateway.models.find_adapter(model.parent or "")
    if found is not None:
        return found[0]
    return gateway.models.find(model.id if gateway.models.named(model.id) is not None else model.parent or "")
