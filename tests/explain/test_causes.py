"""Causes of slow requests, each made by a real engine on a virtual clock, or by what an engine would have told."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from explained_world import Asked, ExplainedWorld, asked
from guesses import FreeProposer
from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.request import Sequence as EngineSequence
from kvarn.explain.explanation import CauseCode, Explanation
from told_requests import FINISHED, FIRST, K, Phase, told_request, waiting


def explained(world: ExplainedWorld, requests: list[Asked], name: str = "mine") -> Explanation:
    world.warm()
    return world.play(requests)[name].explained()


def test_a_request_with_the_engine_to_itself_is_as_fast_as_can_be(monkeypatch):
    found = explained(ExplainedWorld(monkeypatch), [asked("mine", 0.0, 50, 40)])
    assert found.cause.code is CauseCode.OWN_WORK
    assert found.sentence == "This machine can do it no faster: 99 % of the time was the model's own work."


def test_steps_of_uneven_length_are_not_shared_where_nobody_else_is_in_them(monkeypatch):
    chance = random.Random(1)
    world = ExplainedWorld(monkeypatch, slowness=lambda now: chance.choice([0.8, 1.0, 1.8]))
    found = explained(world, [asked("mine", 0.0, 50, 40)])
    assert found.cause.code is CauseCode.OWN_WORK, found.sentence


def test_a_filled_kv_cache_is_told_with_who_held_it(monkeypatch):
    world = ExplainedWorld(monkeypatch, num_blocks=64)
    others = [asked(f"o{number}", 0.0, 480, 30, tenant="globex") for number in range(2)]
    found = explained(world, [*others, asked("mine", 0.2, 200, 4)])
    assert found.cause.code is CauseCode.QUEUE_BLOCKS
    assert found.cause.agent == "two answers of globex"
    assert "went to waiting for KV blocks behind two answers of globex." in found.sentence
    assert found.counterfactuals[0].change == "replica"


def test_full_slots_are_told(monkeypatch):
    world = ExplainedWorld(monkeypatch, max_num_seqs=2)
    others = [asked(f"o{number}", 0.0, 20, 60, tenant="globex") for number in range(2)]
    found = explained(world, [*others, asked("mine", 0.05, 20, 4)])
    assert (found.cause.code, found.cause.agent) == (CauseCode.QUEUE_SLOT, "two answers of globex")


def test_a_spent_token_budget_is_told_with_whose_prompts_took_it(monkeypatch):
    world = ExplainedWorld(monkeypatch, token_budget=64, min_prefill_chunk=64)
    found = explained(world, [asked("o", 0.0, 2000, 2, tenant="globex"), asked("mine", 0.05, 20, 3)])
    assert (found.cause.code, found.cause.agent) == (CauseCode.QUEUE_BUDGET, "a 2,000-token prompt of globex")


def test_a_long_prompt_is_told_and_what_a_cached_prefix_would_spare(monkeypatch):
    found = explained(ExplainedWorld(monkeypatch), [asked("mine", 0.0, 3000, 4)])
    assert (found.cause.code, found.cause.agent) == (CauseCode.LONG_PROMPT, "3,000 tokens")
    assert found.counterfactuals[0].change == "cached"
    assert found.counterfactuals[0].total_s < found.total_s / 3


def test_steps_shared_with_prompts_are_told_with_whose(monkeypatch):
    others = [asked(f"o{number}", 0.05 + number / 10, 1500, 1, tenant="globex") for number in range(4)]
    found = explained(ExplainedWorld(monkeypatch), [asked("mine", 0.0, 20, 20), *others])
    assert (found.cause.code, found.cause.agent) == (CauseCode.SHARED_STEPS, "four 1,500-token prompts of globex")
    assert {each.change for each in found.counterfactuals} == {"replica", "chunks", "alone"}


def test_a_preemption_is_told_with_for_whom(monkeypatch):
    world = ExplainedWorld(monkeypatch, max_num_seqs=1, prefix_cache=False)
    mine = asked("mine", 0.0, 20, 20, priority=10)
    found = explained(world, [mine, asked("chat", 0.1, 20, 60, tenant="globex")])
    assert (found.cause.code, found.cause.agent) == (CauseCode.PREEMPTED, "an answer of globex")
    assert "went to being preempted for an answer of globex." in found.sentence


def test_better_priorities_that_came_later_are_told(monkeypatch):
    world = ExplainedWorld(monkeypatch, max_num_seqs=1)
    chats = [asked(f"chat{number}", 0.03 * number, 20, 20, tenant="globex") for number in range(6)]
    found = explained(world, [chats[0], asked("mine", 0.01, 20, 3, priority=10), *chats[1:]])
    assert found.cause.code is CauseCode.QUEUE_PRIORITY


@pytest.mark.parametrize("stopped", [0.1, 0.02], ids=["while it decodes", "while it waits"])
def test_a_machine_that_stops_is_told_and_not_the_others_in_its_steps(monkeypatch, stopped):
    """What SIGSTOP does: one step takes three seconds."""
    at_s = list[float]()

    def slowness(now: float) -> float:
        if at_s and now >= at_s[0]:
            at_s.clear()
            return 300.0
        return 1.0

    world = ExplainedWorld(monkeypatch, max_num_seqs=2, slowness=slowness)
    world.warm()
    at_s[:] = [world.clock.now() + stopped]
    others = [asked(f"o{number}", 0.0, 20, 8, tenant="globex") for number in range(2)]
    requests = [*others, asked("mine", 0.001, 20, 20)] if stopped < 0.1 else [others[0], asked("mine", 0.001, 20, 20)]
    found = world.play(requests)["mine"].explained()
    assert found.cause.code is CauseCode.SLOW_STEPS
    assert found.cause.seconds == pytest.approx(2.8, abs=0.4)
    assert found.counterfactuals[0].change == "speed"


def test_wrong_proposals_are_told(monkeypatch):
    class AlwaysWrong(FreeProposer):
        grades = (0.5,)
        is_free = True
        call_s = overhead_s = 0.0

        def guess(self, sequence: EngineSequence, limit: int) -> list[int]:
            return [1] * min(8, limit)

    speculation = SpeculationConfig(adaptive=False)
    world = ExplainedWorld(monkeypatch, parts={"proposer": AlwaysWrong(), "speculation": speculation})
    found = explained(world, [asked("mine", 0.0, 20, 30)])
    assert found.cause.code is CauseCode.REJECTED_PROPOSALS
    assert "proposals that were wrong" in found.sentence


@pytest.mark.parametrize(
    ("event", "code", "change"),
    [
        ("read", CauseCode.CLIENT_SEND, "upload"),
        ("stage.limits", CauseCode.LIMIT, "limit"),
        ("stage.admission", CauseCode.ADMISSION, "replica"),
        ("templated", CauseCode.PREPARE, "prepare"),
        ("moderated", CauseCode.MODERATION, "moderation"),
        ("generated", CauseCode.CLIENT_READ, "reader"),
        ("ended", CauseCode.CLIENT_READ, "reader"),
    ],
)
def test_what_the_gateway_and_the_client_took_is_told(monkeypatch, event, code, change):
    found = explained(ExplainedWorld(monkeypatch), [asked("mine", 0.0, 20, 5, delays={event: 2.0})])
    assert found.cause.code is code
    assert found.cause.seconds == pytest.approx(2.0, abs=0.01)
    assert found.counterfactuals[0].change == change


def test_a_slow_chat_template_is_named(monkeypatch):
    found = explained(ExplainedWorld(monkeypatch), [asked("mine", 0.0, 20, 5, delays={"templated": 2.0})])
    assert found.sentence.endswith(" went to preparing its prompt: the chat template.")
    (prepared,) = (part for part in found.parts if part.name == "prepare" and part.end_s - part.begin_s > 1)
    assert prepared.detail == "the chat template"


@pytest.mark.parametrize(
    ("phase", "code"),
    [
        (Phase.WAIT_ADAPTER, CauseCode.QUEUE_ADAPTER),
        (Phase.WAIT_FETCH, CauseCode.QUEUE_TIER),
        (Phase.WAIT_MASK, CauseCode.QUEUE_GRAMMAR),
        (Phase.WAIT_LATENCY, CauseCode.QUEUE_LATENCY),
        (Phase.WAIT_SLOT, CauseCode.QUEUE_SLOT),
    ],
)
def test_a_wait_is_told_by_its_reason_where_no_steps_are_known(phase, code):
    found = told_request([*waiting(phase, 700_000), *FINISHED]).explained()
    assert found.cause.code is code
    assert found.cause.seconds == pytest.approx(0.7)


def test_a_cold_adapter_is_named():
    found = told_request([*waiting(Phase.WAIT_ADAPTER, 700_000), *FINISHED], adapter="support-tone").explained()
    assert "went to loading the adapter support-tone." in found.sentence


@pytest.mark.parametrize(("cold", "code"), [(0, CauseCode.NO_REPLICA), (1, CauseCode.COLD_MODEL)])
def test_waiting_for_a_first_replica_is_told(cold, code):
    numbers: Mapping[str, float] = {"cold": cold}
    found = told_request([*FIRST, *FINISHED], held_s=5.0, held=numbers).explained()
    assert found.cause.code is code


def test_a_failover_is_told_with_the_replica_that_went_on():
    lost = [*FIRST]
    again = [K.QUEUED, 0, 0, K.SCHEDULED, 0, 0, 0, K.CHUNK, 0, 120, 1, 1, 120, K.FIRST_TOKEN, 200_000, *FINISHED]
    found = told_request(lost, moved_s=(1.5, 3.0), moved=again).explained()
    assert found.cause.code is CauseCode.FAILOVER
    assert found.cause.seconds == pytest.approx(1.5)
    assert found.cause.agent == "tiny-1 went on"
    assert [part.name for part in found.parts if part.end_s - part.begin_s > 0.15] == [
        "prefill",
        "decode",
        "failover",
        "decode",
    ]


def test_another_tenant_is_named_only_as_the_reader_may_see_it(monkeypatch):
    world = ExplainedWorld(monkeypatch, max_num_seqs=1)
    world.warm()
    answered = world.play([asked("o", 0.0, 20, 60, tenant="globex"), asked("mine", 0.05, 20, 4)])["mine"]
    found = answered.explained(name_of=lambda tenant: tenant if tenant == "acme" else "another tenant")
    assert found.cause.agent == "an answer of another tenant"
    assert "globex" not in found.text


def test_where_too_many_rows_were_left_out_answers_are_counted(monkeypatch):
    others = [asked(f"o{number}", number / 100, 20, 300, tenant="globex") for number in range(90)]
    world = ExplainedWorld(monkeypatch)
    world.warm()
    answered = world.play([asked("mine", 0.0, 20, 300), *others])["mine"]
    assert not answered.steps["mine"].complete
    found = answered.explained()
    assert found.cause.code is CauseCode.SHARED_STEPS
    assert found.cause.agent.endswith(" answers at once")
    assert any(each.change == "alone" for each in found.counterfactuals), "all of its own rows were told"
