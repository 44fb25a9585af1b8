"""From the rules that hold for a key, its project and its organisation to the bounds of one request."""

from __future__ import annotations

from collections.abc import Iterable

from kvarn.config.platform import LimitsConfig
from kvarn.limits.orders import MAX_NUMBER, Bound, Kind
from kvarn.store.owner import LimitRule, Principal

_ANY_MODEL = "*"


def bounds_of(principal: Principal, model: str, defaults: LimitsConfig) -> tuple[Bound, ...]:
    """The bounds of a principal's requests to a model: key, project and organisation, each counted for itself.

    A rule for the model stands before one for every model (`*`), number by number; the server's defaults stand in
    where the organisation has neither.
    """
    organization = principal.organization_id
    fallback = LimitRule(
        organization,
        requests_per_minute=defaults.requests_per_minute,
        tokens_per_minute=defaults.tokens_per_minute,
        concurrency=defaults.concurrency,
    )
    exact = [rule for rule in principal.limits if rule.model == model]
    general = [rule for rule in principal.limits if rule.model == _ANY_MODEL]
    ranked = [*exact, *general, fallback]
    holders = dict.fromkeys(rule.holder for rule in ranked)
    return tuple(
        Bound(kind, _scope(principal, holder), holder, model, limit, _key(organization, kind, holder, model))
        for holder in holders
        for kind in Kind
        if (limit := _first(ranked, holder, kind)) is not None
    )


def _first(ranked: Iterable[LimitRule], holder: str, kind: Kind) -> int | None:
    for rule in ranked:
        if rule.holder == holder and (limit := _number(rule, kind)) is not None:
            return min(limit, MAX_NUMBER)
    return None


def _number(rule: LimitRule, kind: Kind) -> int | None:
    match kind:
        case Kind.REQUESTS:
            return rule.requests_per_minute
        case Kind.TOKENS:
            return rule.tokens_per_minute
        case Kind.CONCURRENCY:
            return rule.concurrency


def _scope(principal: Principal, holder: str) -> str:
    if holder == principal.organization_id:
        return "organisation"
    return "project" if holder == principal.project_id else "API key"


def _key(organization: str, kind: Kind, holder: str, model: str) -> str:
    # The model comes last: it is the one part that may hold a colon.
    return f"kvarn:limits:{{{organization}}}:{kind}:{holder}:{model}"
