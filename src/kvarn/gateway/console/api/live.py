"""`/console/api/live`: the steps of a replica, what runs and waits there, its KV blocks, as they change; and one block.

Each gateway process asks the engines itself, and shows all that they do, whichever process the requests came through.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import Query, Request
from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field
from starlette.responses import Response

from kvarn.catalog.models import ServedModel
from kvarn.gateway.console.live.frames import ViewerNames, frame
from kvarn.gateway.console.live.state import LiveState, tenants_of
from kvarn.gateway.console.live.watch import ReplicaWatch, Watches, choose_replica
from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.streams import console_stream
from kvarn.gateway.console.viewer import ANOTHER_TENANT, ConsoleViewer, Viewer
from kvarn.gateway.dependencies import GatewayDep
from kvarn.gateway.query import CHECKED, QueryModel, Text
from kvarn.gateway.state import Gateway
from kvarn.identity.scopes import may_see_adapter, may_use_model
from kvarn.store.errors import StoreError
from kvarn.store.owner import Principal
from kvarn.wire.kv_map import PathBlock
from kvarn.wire.openai.errors import ApiError, model_not_found, unavailable
from kvarn.wire.questions import AskKVPath
from kvarn.wire.sse import named_event

router = console_router()


class LiveQuery(QueryModel):
    model: Text | None = Field(None, description="Name of the model; default: the first that generates text.")
    replica: Text | None = Field(None, description="Name of its replica; default: the first that is ready.")


class BlockQuery(LiveQuery):
    block: int = Field(ge=0, le=2**31)


class BlockDetail(Struct, frozen=True, kw_only=True):
    """A block and what stands before it in the prefix cache. What the viewer may not see is null."""

    block: int
    tenant: str | None
    """Null: nobody's, or not known."""
    adapter: str | None
    is_adapter: bool
    depth: int
    """Blocks of its path in the prefix cache, its own included; 0: the cache does not name it."""
    tokens: int
    """Tokens that its path stands for."""
    path: list[PathBlock]
    """Block, block tables that hold it, blocks that follow it: the block itself first, then towards the root."""
    request_ids: list[str] | None


@router.get("/live", dependencies=CHECKED)
async def watch_live(
    request: Request, gateway: GatewayDep, viewer: ConsoleViewer, query: Annotated[LiveQuery, Query()]
) -> Response:
    """Events: `state`, which is all, then `update`s of what has changed, at most four a second. Raises `ApiError`:
    404."""
    model, replica = _find(gateway, viewer.principal, query)
    watches: Watches = request.app.state.watches
    return console_stream(request, _events(watches, model, replica, viewer))


@router.get("/live/block", dependencies=CHECKED)
async def get_block(gateway: GatewayDep, viewer: ConsoleViewer, query: Annotated[BlockQuery, Query()]) -> BlockDetail:
    """One KV block. Raises `ApiError`: 404, there is no such block; 503, the engine does not answer."""
    model, replica = _find(gateway, viewer.principal, query)
    client = model.version_of(replica).replicas[replica]
    path = await client.ask(AskKVPath(query.block))
    if path is None:
        card = client.card
        if card is not None and query.block >= card.kv_blocks:
            raise ApiError(404, f"The replica {replica!r} has no block {query.block}.", code="not_found", param="block")
        raise unavailable(f"The replica {replica!r} does not answer: try again.", "replica_not_answering")
    sees = viewer.may_see(path.tenant)
    loaded = model.adapters.get(path.adapter) if path.is_adapter else None
    names_adapter = sees or (loaded is not None and may_see_adapter(viewer.principal, loaded))
    return BlockDetail(
        block=path.block,
        tenant=await viewer.name_of(path.tenant) if path.tenant else None,
        adapter=(path.adapter or None) if names_adapter else None,
        is_adapter=path.is_adapter,
        depth=path.depth,
        tokens=0 if client.card is None else path.depth * client.card.block_size,
        path=path.path,
        request_ids=path.request_ids if sees else None,
    )


def _find(gateway: Gateway, principal: Principal, query: LiveQuery) -> tuple[ServedModel, str]:
    """The model and the name of its replica that are asked for."""
    visible = [model for model in gateway.models if may_use_model(principal, model.name)]
    model = visible[0] if visible else None
    if query.model is not None:
        model = gateway.models.find(query.model, lambda name: may_use_model(principal, name))
    elif generating := [each for each in visible if each.card is not None and each.card.kind == "generate"]:
        model = generating[0]
    if model is None or model not in visible:
        raise model_not_found((query.model or "")[:200], [each.name for each in visible])
    replica = choose_replica(model, query.replica)
    if replica is None:
        which = "no replica" if query.replica is None else f"no replica {query.replica!r}"
        raise ApiError(404, f"{model.name!r} has {which} now.", code="not_found", param="replica")
    return model, replica


async def _events(watches: Watches, model: ServedModel, replica: str, viewer: Viewer) -> AsyncGenerator[bytes, None]:
    async with watches.view(model, replica) as watch:
        seen: LiveState | None = None
        while True:
            state = await watch.after(seen)
            names = ViewerNames(viewer, await _names(watch, viewer, state))
            is_whole = seen is None or seen.epoch != state.epoch
            told = frame(seen, state, names)
            if is_whole:
                told = replace(told, model=model.name, replica=replica)
            yield named_event("state" if is_whole else "update", told)
            seen = state


async def _names(watch: ReplicaWatch, viewer: Viewer, state: LiveState) -> dict[str, str]:
    """Names of the tenants that a state speaks of, as the viewer reads them; ids while the database is away."""
    known = watch.names.setdefault(viewer.organization_id, {})
    missing = tenants_of(state) - known.keys()
    if missing:
        try:
            known |= await viewer.names_of(missing)
        except StoreError:
            ids = {each: each for each in missing if viewer.organization_id in (None, each)}
            return known | dict.fromkeys(missing, ANOTHER_TENANT) | ids
    return known
