from __future__ import annotations

import pytest

from kvarn.engine.errors import AdmissionError, ProtocolError
from kvarn.engine.plan import StepPlan, StepResult
from kvarn.wire.messages import FinishReason


def test_choices_share_the_prompts_blocks_and_copy_before_they_write(make_world):
    world = make_world()
    world.submit("a", 40, n=4, max_tokens=20)
    world.run()
    world.assert_answered("a")
    assert sum(len(plan.copies) for plan in world.executor.plans) == 3
    assert world.engine.stats().prompt_tokens_total == 40
    computed = sum(plan.num_tokens for plan in world.executor.plans)
    assert computed == 40 + 19 + 3 * 20


def test_what_the_executor_raises_passes_through(make_world):
    world = make_world()
    world.submit("a", 10)

    def fail(plan: StepPlan) -> StepResult:
        raise RuntimeError("device lost")

    world.executor.execute = fail
    with pytest.raises(RuntimeError, match="device lost"):
        world.engine.step()


def test_a_result_that_answers_another_plan_is_a_protocol_error(make_world):
    world = make_world()
    world.submit("a", 10)
    world.executor.execute = lambda plan: StepResult(plan.step + 1, [], 0.01)
    with pytest.raises(ProtocolError):
        world.engine.step()


def test_an_aborted_request_frees_its_blocks_at_once_and_is_never_heard_of_again(make_world):
    world = make_world(prefix_cache=False)
    world.submit("a", 100, n=3, max_tokens=50)
    world.submit("b", 10, max_tokens=50)
    for _ in range(5):
        world.step()
    world.engine.abort("a")
    assert world.engine.scheduler.memory.pool.num_held == 1
    heard = len(world.deltas["a"])
    world.run()
    assert len(world.deltas["a"]) == heard
    world.assert_answered("b")
    assert world.engine.stats().aborts_total == 1


def test_abort_all_leaves_nothing(make_world):
    world = make_world(max_num_seqs=1)
    world.submit("a", 10)
    world.submit("b", 10)
    world.step()
    assert world.engine.abort_all() == ["a", "b"]
    assert not world.engine.has_work()
    world.engine.check_integrity()
    assert world.engine.stats().kv_blocks_free == 64


def test_the_first_delta_of_choice_0_tells_cached_tokens(make_world):
    world = make_world(max_num_seqs=1)
    prompt = list(range(40))
    world.submit("a", prompt, max_tokens=3)
    world.submit("b", prompt, max_tokens=3)
    world.run()
    assert world.cached_tokens("a") == 0
    assert world.cached_tokens("b") == 32
    assert world.deltas["b"][1].cached_tokens == 0


def test_a_stop_token_ends_the_answer_but_not_before_min_tokens(make_world):
    world = make_world()
    every_token = list(range(50))
    world.submit("a", 10, max_tokens=20, stop_token_ids=every_token)
    world.submit("b", 10, max_tokens=20, stop_token_ids=every_token, min_tokens=5)
    world.run()
    assert len(world.output("a")) == 1
    assert len(world.output("b")) == 5
    assert world.finish_reason("a") is world.finish_reason("b") is FinishReason.STOP


def test_an_answer_is_cut_at_the_context_length(make_world):
    world = make_world(max_context_length=32)
    world.submit("a", 30, max_tokens=20)
    world.run()
    assert len(world.output("a")) == 2
    assert world.finish_reason("a") is FinishReason.LENGTH


def test_no_output_wanted_computes_the_prompt_only(make_world):
    world = make_world()
    world.submit("a", 40, max_tokens=0, prompt_logprobs=0)
    world.run()
    assert world.output("a") == []
    assert world.finish_reason("a") is FinishReason.LENGTH
    assert len(world.deltas["a"][0].prompt_logprobs) == 40


def test_prompt_logprobs_are_complete_over_chunks_hits_and_choices(make_world):
    world = make_world(token_budget=7)
    prompt = [i % 13 for i in range(40)]
    world.submit("warm", prompt)
    world.run()
    world.submit("a", prompt, prompt_logprobs=0, logprobs=0, n=2)
    world.run()
    found = world.deltas["a"][0].prompt_logprobs
    assert found[0] is None
    assert [entry.chosen.token_id for entry in found[1:]] == prompt[1:]
    assert all(delta.prompt_logprobs is None for delta in world.deltas["a"][1:])
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in world.deltas["a"])
    world.assert_answered("a")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": []}, "invalid"),
        ({"prompt": [1, -1]}, "invalid"),
        ({"prompt": [1, 2**63]}, "invalid"),
        ({"prompt": 5, "n": 0}, "invalid"),
        ({"prompt": 5, "weight": float("inf")}, "invalid"),
        ({"prompt": 5, "weight": float("nan")}, "invalid"),
        ({"prompt": 5, "weight": 0.0}, "invalid"),
        ({"prompt": 5, "max_tokens": -1}, "invalid"),
        ({"prompt": 200}, "prompt_too_long"),
        ({"prompt": 60, "max_tokens": 100}, "never_fits"),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(make_world, fields, reason):
    world = make_world(num_blocks=6, max_context_length=200)
    assert not world.submit("a", **fields)
    assert world.refused["a"] == reason
    assert not world.engine.has_work()
    assert world.engine.stats().refused_total == {reason: 1}


def test_what_just_fits_is_served(make_world):
    world = make_world(num_blocks=6, max_context_length=200)
    assert world.submit("a", 60, max_tokens=37)
    world.run()
    world.assert_answered("a")


def test_a_second_request_of_the_same_id_is_refused_while_the_first_lives(make_world):
    world = make_world()
    world.submit("a", 10)
    world.submit("a", 10)
    assert world.refused == {"a": "duplicate_id"}
    world.run()
    assert world.submit("a", 10)


def test_the_queue_is_bounded_in_requests_and_in_tokens(make_world):
    world = make_world(max_waiting_requests=2, max_waiting_tokens=100)
    assert world.submit("a", 80)
    assert not world.submit("b", 30)
    assert world.submit("c", 20)
    assert not world.submit("d", 0 + 1)
    assert world.refused == {"b": "queue_full", "d": "queue_full"}
    world.step()
    assert world.submit("e", 90)


def test_a_refusal_for_a_full_queue_says_when_to_come_back(make_world):
    world = make_world(max_waiting_tokens=1000, max_num_seqs=1, token_budget=10)
    world.submit("a", 100)
    for _ in range(5):
        world.step()
    world.submit("b", 900)
    with pytest.raises(AdmissionError) as refused:
        world.engine.add(world.messages["b"].__class__(**{**_fields(world.messages["b"]), "request_id": "c"}))
    assert refused.value.retry_after_s == pytest.approx(1.0)


def _fields(message):
    return {name: getattr(message, name) for name in message.__struct_fields__}


def test_waiting_too_long_is_refused_only_before_the_first_step(make_world):
    world = make_world(max_num_seqs=1, max_wait_s=5.0)
    world.submit("a", 10, max_tokens=12)
    world.submit("b", 10)
    for _ in range(12):
        world.step(seconds=1.0)
    world.run()
    assert world.refused == {"b": "queue_timeout"}
    world.assert_answered("a")


def test_what_goes_on_from_a_lost_engine_waits_and_is_not_refused_for_load(make_world):
    world = make_world(max_num_seqs=1, max_waiting_requests=2, max_waiting_tokens=30, max_wait_s=5.0)
    for name in ("a", "b"):
        assert world.submit(name, 10, max_tokens=12)
    assert not world.submit("new", 30)
    assert world.submit("moved", 30, goes_on=True)
    assert not world.submit("newer", 1), "what waits counts for those who come"
    for _ in range(12):
        world.step(seconds=1.0)
    world.run()
    assert world.refused == {"new": "queue_full", "newer": "queue_full", "b": "queue_timeout"}
    world.assert_answered("moved")


def test_by_default_a_long_queue_drains_however_long_it_takes(make_world):
    """64 prompts on an engine that needs half an hour for them."""
    world = make_world(max_num_seqs=1)
    for index in range(64):
        assert world.submit(f"r{index}", 10, max_tokens=2)
    while world.engine.has_work():
        world.step(seconds=15.0)
    assert world.now > 1800 and not world.refused
    world.assert_all_answered()


def test_draining_finishes_what_is_here_and_refuses_the_rest(make_world):
    world = make_world()
    world.submit("a", 10)
    world.engine.start_draining()
    assert not world.submit("b", 10)
    assert world.refused == {"b": "draining"}
    world.run()
    world.assert_answered("a")
