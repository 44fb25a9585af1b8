"""From the rules that hold for a key, its project and its organisation to the limits of one request."""

from __future__ import annotations

from kvarn.config.platform import LimitsConfig
from kvarn.limits.types import MAX_NUMBER, Kind, Limit
from kvarn.store.owner import LimitRule, Principal

_FIELDS = {Kind.REQUESTS: "requests_per_minute", Kind.TOKENS: "tokens_per_minute", Kind.CONCURRENCY: "concurrency"}


def limits_of(principal: Principal, model: str, defaults: LimitsConfig) -> tuple[Limit, ...]:
    """The limits of a principal's requests to a model: key, project and organisation, each counted for itself.

    A rule for the model stands before one for every model (`*`), number by number; the server's defaults stand in
    where the organisation has neither.
    """
    organization = principal.organization_id
    scopes = {organization: "organisation", principal.project_id: "project"}
    exact = [rule for rule in principal.limits if rule.model == model]
    general = [rule for rule in principal.limits if rule.model == "*"]
    fallback = LimitRule(organization, **{field: getattr(defaults, field) for field in _FIELDS.values()})
    ranked = [*exact, *general, fallback]
    found: list[Limit] = []
    for holder in dict.fromkeys(rule.holder for rule in ranked):
        for kind, field in _FIELDS.items():
            numbers = (getattr(rule, field) for rule in ranked if rule.holder == holder)
            maximum = next((number for number in numbers if number is not None), None)
            if maximum is not None:
                # The model comes last: it is the one part that may hold a colon.
                key = f"kvarn:limits:{{{organization}}}:{kind}:{holder}:{model}"
                scope = scopes.get(holder, "API key")
                maximum = min(maximum, MAX_NUMBER)
                found.append(Limit(kind, key, maximum, scope=scope, holder=holder, model=model))
    return tuple(found)
