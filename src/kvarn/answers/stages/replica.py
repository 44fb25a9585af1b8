"""Chooses the replica that answers a turn, and reserves its load there."""

from __future__ import annotations

from collections.abc import Sequence

from kvarn.answers.turn import Turn, salt_of
from kvarn.catalog.models import ReadyModel
from kvarn.catalog.text_pool import TextPool
from kvarn.routing.candidate import RouteRequest


class ReplicaStage:
    """Chooses a replica; built-in and external models have none. Long prompts are hashed in the `text` pool."""

    name = "replica"

    def __init__(self, text: TextPool) -> None:
        self._text = text

    async def enter(self, turn: Turn) -> None:
        """Choose a replica. Raises `ApiError`: 503, none takes requests any more."""
        prompt, record = turn.prompt, turn.record
        if prompt is None or not isinstance(prompt.model, ReadyModel) or prompt.model.is_external:
            return
        served, tenant, session = prompt.model.served, record.principal.organization_id, record.choice.session
        replicas, names = served.replicas, b""
        if prompt.token_ids and replicas.reads_names:
            token_ids: Sequence[int] = prompt.token_ids
            salt = salt_of(record.principal, prompt.cache_salt)
            names = await self._text.run(
                tenant, record.body_bytes, lambda: replicas.names(token_ids, tenant, salt, turn.adapter)
            )
        turn.route_request = RouteRequest(
            prompt_tokens=turn.prompt_tokens,
            names=names,
            session=f"{tenant}/{session}" if session else "",
            adapter=turn.adapter,
            sequences=turn.sequences,
        )
        choice = replicas.choose_or_draining(turn.route_request)
        if choice is None:
            raise served.not_ready()
        turn.closing.callback(turn.settle_choice)
        turn.go_to(choice)
