"""Prompts that are known by the names of their blocks, against the same prompts as tokens."""

from __future__ import annotations

import pytest

from forwarded_engine import Engine, submit
from kvarn.engine.plan import NewSequence
from kvarn.traffic.workload import Segment, Vocabulary
from kvarn.wire.block_names import NamedPrompt, PrefixScope, root_hash
from kvarn.wire.sampling import choice_seed
from kvarn.wire.sessions import SessionTurn
from kvarn.worker.modelled import successor

VOCABULARY = Vocabulary(0, 1 << 20)


def recipes(number: int) -> tuple[str, list[Segment], Segment]:
    """Tenant, prompt and answer of the turns of five conversations, which begin with one of two system prompts."""
    conversation, turn = number % 5, number // 5
    segments = [Segment(key=conversation % 2, length=100)]
    for each in range(turn):
        segments += [
            Segment(key=100 * conversation + 2 * each + 10, length=13 + 7 * each),
            Segment(key=100 * conversation + 2 * each + 11, length=20 + each),
        ]
    segments.append(Segment(key=100 * conversation + 2 * turn + 10, length=13 + 7 * turn))
    return f"t{conversation // 3}", segments, Segment(key=100 * conversation + 2 * turn + 11, length=20 + turn)


@pytest.mark.parametrize("num_blocks", [60, 400])
def test_prompts_by_the_names_of_their_blocks_share_and_cost_what_tokens_do(num_blocks: int) -> None:
    answers: dict[int, list[int]] = {}

    def following(_last: int, sequence: NewSequence) -> int:
        """The answer's token: its place is in no plan, so it is counted here."""
        return answers[sequence.seed].pop(0)

    outcomes = []
    for is_named in (False, True):
        engine = Engine(num_blocks=num_blocks, next_token=successor if is_named else following)
        for number in range(30):
            tenant, segments, answer = recipes(number)
            prompt = [token for segment in segments for token in segment.token_ids(VOCABULARY, 0)]
            if is_named:
                pairs = [(each.key, each.length) for each in segments]
                prompt = NamedPrompt.of(root_hash(PrefixScope(tenant)), pairs, (answer.key, answer.length))
            message = submit(
                number,
                prompt_token_ids=prompt,
                max_tokens=answer.length,
                tenant=tenant,
                session=SessionTurn(id=b"%d" % (number % 5)) if number % 2 else None,
            )
            answers[choice_seed(number, 0)] = answer.token_ids(VOCABULARY, 0)
            engine.add(message)
            while engine.core.has_work() and (number % 3 or engine.clock.now() < 3 + 0.2 * number):
                engine.step()
            engine.core.check_integrity()
        stats = engine.core.stats()
        times = [(now, request_id) for now, request_id, _, _ in engine.tokens]
        outcomes.append((times, stats, engine.executor.shapes()))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1].cached_tokens_total > 1000


def test_a_prompt_without_the_names_of_its_answers_blocks_is_refused() -> None:
    prompt = NamedPrompt.of(root_hash(PrefixScope()), [(1, 40)], answer=(2, 10))
    engine = Engine()
    assert engine.add(submit(prompt_token_ids=prompt, max_tokens=8 + 16)) == ""
    assert "names of all its blocks" in engine.add(submit(1, prompt_token_ids=prompt, max_tokens=8 + 16 + 1))
