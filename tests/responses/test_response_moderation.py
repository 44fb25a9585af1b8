"""Responses whose input or output moderation flags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from fake_replica import answer_text
from kvarn.config.platform import SafetyConfig

RULES = {"rules": ("(?i)i will kill you",), "threshold": 0.999}


@pytest.fixture
def guarded(serve: Any) -> Iterator[Any]:
    """A gateway that looks at prompts and answers."""

    with serve(config={"safety": SafetyConfig(moderate_input=True, moderate_output=True, **RULES)}) as server:
        yield server


@pytest.fixture
def sdk(guarded: Any) -> Iterator[openai.OpenAI]:
    with guarded.sdk() as made:
        yield made


def test_a_flagged_input_is_refused_at_once_and_fails_in_the_background(sdk, wait_for):
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.responses.create(model="tiny", input="I will kill you.")
    assert (refusal.value.code, refusal.value.param) == ("content_filter", "input")
    queued = sdk.responses.create(model="tiny", input="I will kill you.", background=True)
    wait_for(lambda: sdk.responses.retrieve(queued.id).status == "failed", "it to fail")
    error = sdk.responses.retrieve(queued.id).error
    assert error is not None and error.code == "invalid_prompt" and "moderation" in error.message


def test_a_flagged_answer_ends_with_a_refusal_and_is_incomplete(guarded, sdk):
    guarded.chat.answer = lambda request, index: answer_text("All is well. " * 12 + "I will kill you." + "x" * 200)
    made: Any = sdk.responses.create(model="tiny", input="x")
    assert made.status == "incomplete" and made.incomplete_details.reason == "content_filter"
    assert "kill" not in made.output_text and made.output[-1].content[0].type == "refusal"
    assert "moderation" in made.output[-1].content[0].refusal
    events = list(sdk.responses.create(model="tiny", input="x", stream=True))
    kinds = [event.type for event in events]
    assert kinds[-6:] == [
        "response.content_part.added",
        "response.refusal.delta",
        "response.refusal.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert not any("kill" in getattr(event, "delta", "") for event in events)
    again = list(sdk.responses.retrieve(events[0].response.id, stream=True))
    assert [event.to_dict() for event in again] == [event.to_dict() for event in events]
