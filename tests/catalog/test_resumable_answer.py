"""What has come of an answer, and what the replica that goes on with it is asked for."""

from __future__ import annotations

from kvarn.catalog.resumable_answer import ResumableAnswer, choose_other
from kvarn.config.replica import FailoverConfig
from kvarn.routing.candidate import RouteRequest
from kvarn.routing.router import ReplicaChoice
from kvarn.wire.messages import FinishReason, RefusalReason, Submit, TokenDelta
from kvarn.wire.sampling import SamplingParams


def _answer(n: int = 1, **config: float) -> ResumableAnswer:
    sampling = SamplingParams(seed=0, max_tokens=9, n=n)
    submit = Submit(request_id="r", prompt_token_ids=[1, 2], sampling=sampling, ttft_left_s=1.0)
    return ResumableAnswer(submit, FailoverConfig(**config))


def _delta(*tokens: int, index: int = 0, cached: int = 0, ends: bool = False) -> TokenDelta:
    return TokenDelta(
        request_id="r",
        index=index,
        token_ids=list(tokens),
        cached_tokens=cached,
        finish_reason=FinishReason.LENGTH if ends else None,
    )


def test_the_rest_is_asked_for_with_the_tokens_that_have_come_and_another_id() -> None:
    answer = _answer(n=2)
    answer.take(_delta(5, 6))
    answer.take(_delta(7, index=1, ends=True))
    assert answer.lose("a", None, now=3.0)
    rest = answer.move()
    assert rest.request_id == "r~1"
    assert rest.ttft_left_s is None
    assert rest.goes_on
    assert rest.resume_token_ids == [[5, 6], None]
    assert answer.attempt is rest


def test_nothing_is_resumed_where_nothing_has_come() -> None:
    answer = _answer()
    assert answer.lose("a", None, now=0.0)
    assert not answer.move().resume_token_ids


def test_cached_tokens_are_told_once() -> None:
    answer = _answer()
    assert answer.take(_delta(5, cached=16)).cached_tokens == 16
    answer.lose("a", None, now=0.0)
    answer.move()
    assert answer.take(_delta(6, cached=32)).cached_tokens == 0


def test_the_pause_is_counted_from_the_first_loss_to_the_next_delta() -> None:
    answer = _answer()
    assert answer.end_pause(1.0) is None
    answer.lose("a", None, now=2.0)
    answer.lose("b", None, now=4.0)
    assert answer.end_pause(7.0) == 5.0
    assert answer.end_pause(8.0) is None


def test_too_many_losses_without_a_token_end_it_and_a_token_forgives_them() -> None:
    answer = _answer(max_losses=2)
    assert answer.lose("a", None, now=0.0)
    assert answer.lose("b", None, now=1.0)
    answer.take(_delta(5))
    assert answer.lose("c", None, now=2.0)
    assert answer.lost == ["c"]
    assert answer.lose("d", None, now=3.0)
    assert not answer.lose("e", None, now=4.0)


def test_a_refusal_is_final_but_for_a_replica_that_drains() -> None:
    assert _answer().lose("a", RefusalReason.DRAINING, now=0.0)
    assert not _answer().lose("a", RefusalReason.QUEUE_FULL, now=0.0)


def test_it_is_given_up_after_the_longest_wait() -> None:
    answer = _answer(max_wait_s=30)
    answer.lose("a", None, now=2.0)
    assert answer.waits_until == 32.0
    answer.move()
    assert answer.waits_until is None


def test_without_failover_it_ends_with_its_replica() -> None:
    submit = Submit(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(seed=0))
    assert not ResumableAnswer(submit, None).lose("a", None, now=0.0)


def test_others_go_before_replicas_that_were_lost() -> None:
    ready = ["a", "b"]

    def choose(request: RouteRequest) -> ReplicaChoice | None:
        return next((ReplicaChoice(name) for name in ready if name not in request.excluded), None)

    route = RouteRequest(1)
    assert choose_other(choose, route, ["a"]) == ReplicaChoice("b")
    assert choose_other(choose, route, ["a", "b"]) == ReplicaChoice("a")
    ready.clear()
    assert choose_other(choose, route, ["a"]) is None
