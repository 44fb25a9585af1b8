"""From rules to the limits of one request."""

from __future__ import annotations

from kvarn.config.platform import LimitsConfig
from kvarn.limits.rules import limits_of
from kvarn.limits.types import MAX_NUMBER, Kind
from kvarn.store.owner import LimitRule, Owner, Principal

NOTHING = LimitsConfig()


def principal(*rules: LimitRule) -> Principal:
    return Principal(Owner("org-1", "proj_1"), key_id="key_1", limits=rules)


def limits(found: Principal, model: str = "tiny", defaults: LimitsConfig = NOTHING) -> dict[tuple[str, str], int]:
    return {(limit.holder, str(limit.kind)): limit.maximum for limit in limits_of(found, model, defaults)}


def test_without_rules_nothing_is_bounded() -> None:
    assert limits_of(principal(), "tiny", NOTHING) == ()


def test_key_project_and_organisation_hold_together_each_with_a_count_of_its_own() -> None:
    rules = [LimitRule(holder, requests_per_minute=5, concurrency=2) for holder in ("org-1", "proj_1", "key_1")]
    found = limits_of(principal(*rules), "tiny", NOTHING)
    assert len(found) == 6 and len({limit.key for limit in found}) == 6
    assert {limit.scope for limit in found} == {"organisation", "project", "API key"}
    assert all("{org-1}" in limit.key for limit in found), "one node of a Redis cluster keeps all of them"


def test_a_rule_for_the_model_stands_before_one_for_every_model_number_by_number() -> None:
    rules = LimitRule("org-1", requests_per_minute=5, tokens_per_minute=50), LimitRule("org-1", "tiny", 7)
    assert limits(principal(*rules)) == {("org-1", "requests"): 7, ("org-1", "tokens"): 50}
    assert limits(principal(*rules), "vec") == {("org-1", "requests"): 5, ("org-1", "tokens"): 50}


def test_each_model_has_counts_of_its_own_under_a_common_rule() -> None:
    found = principal(LimitRule("org-1", requests_per_minute=5))
    assert limits_of(found, "tiny", NOTHING)[0].key != limits_of(found, "vec", NOTHING)[0].key


def test_the_servers_defaults_stand_in_where_the_organisation_has_no_number() -> None:
    defaults = LimitsConfig(requests_per_minute=100, tokens_per_minute=1000, concurrency=9)
    own = principal(LimitRule("org-1", tokens_per_minute=7), LimitRule("key_1", requests_per_minute=3))
    assert limits(own, defaults=defaults) == {
        ("org-1", "requests"): 100,
        ("org-1", "tokens"): 7,
        ("org-1", "concurrency"): 9,
        ("key_1", "requests"): 3,
    }


def test_a_limit_too_large_to_count_is_the_largest_that_can_be() -> None:
    found = limits_of(principal(LimitRule("org-1", tokens_per_minute=2**62)), "tiny", NOTHING)
    assert found[0].kind is Kind.TOKENS and found[0].maximum == MAX_NUMBER
