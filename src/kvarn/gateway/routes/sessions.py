"""`/v1/sessions`: what a client knows of a session between its turns. Unknown ones get the same answer."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from kvarn.answers.sessions import session_id
from kvarn.gateway.dependencies import GatewayDep, PrincipalDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED
from kvarn.gateway.state import Gateway
from kvarn.store.owner import Principal
from kvarn.wire.openai.lists import DeletedObject
from kvarn.wire.openai.sessions import AnnouncedSession
from kvarn.wire.sessions import SessionEvent, SessionNews

router = json_router("/v1/sessions", "sessions", CHECKED)

SessionName = Annotated[str, Path(max_length=256, description="The id that the session's requests name.")]


@router.post("/{session}/prefetch", summary="Announce the next turn of a session")
async def announce_turn(gateway: GatewayDep, principal: PrincipalDep, session: SessionName) -> AnnouncedSession:
    """Have the session's KV kept, and brought near from a tier, for a minute: a tool is about to answer."""
    _tell(gateway, principal, session, SessionEvent.RETURNS)
    return AnnouncedSession(id=session)


@router.delete("/{session}", summary="Give up a session's KV")
async def end_session(gateway: GatewayDep, principal: PrincipalDep, session: SessionName) -> DeletedObject:
    """Have the session's KV go first when room is needed: nothing follows."""
    _tell(gateway, principal, session, SessionEvent.ENDED)
    return DeletedObject(id=session, object="session.deleted")


def _tell(gateway: Gateway, principal: Principal, session: str, event: SessionEvent) -> None:
    """Tell all engines: any of them may have answered a turn of it."""
    news = SessionNews(session=session_id(principal, session), event=event)
    for model in gateway.models:
        for replica in model.replicas.values():
            replica.tell_session(news)
