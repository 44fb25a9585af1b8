"""What may be shown of an answer that is looked at while it is written."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.moderation.output_moderation import OutputModeration
from kvarn.safety.verdict import RULE, Verdict
from kvarn.text.reasoning.splitter import Reasoning

FORBIDDEN = "committ"
"""As a word of its own: `committee` is none."""


async def judge(text: str) -> Verdict:
    return Verdict({RULE: float(FORBIDDEN in text.split())}, 0.5)


def pieces_of(text: str, cuts: list[int], *, bare_end: bool) -> list[ChoiceDelta]:
    """The text cut at these places; the end comes with its last piece, or by itself as an end token does."""
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    parts = [text[a:b] for a, b in pairwise(places) if a < b]
    pieces = [ChoiceDelta(0, part) for part in parts]
    if bare_end or not pieces:
        pieces.append(ChoiceDelta(0, "", finish_reason="stop"))
    else:
        pieces[-1].finish_reason = "stop"
    return pieces


async def shown_of(pieces: list[ChoiceDelta], look_every: int, hold_back: int) -> tuple[str, str]:
    """What was shown in the end, and why it ended."""
    watch = OutputModeration(judge, look_every, hold_back)
    shown = ""
    for piece in pieces:
        out = await watch.look(piece)
        shown += "" if out is None else out.text
        if out is not None and out.finish_reason is not None:
            return shown, str(out.finish_reason)
    raise AssertionError("it did not end")


WORDS = st.lists(st.sampled_from(["a", "mill", "committee", "turns,", "grinds"]), max_size=12).map(" ".join)
CUTS = st.lists(st.integers(0, 200), max_size=40)


@given(WORDS, WORDS, CUTS, st.booleans(), st.integers(1, 60), st.integers(0, 60))
async def test_a_forbidden_word_is_never_shown_wherever_it_stands_and_the_stream_is_cut(
    before, after, cuts, bare_end, look_every, hold_back
):
    text = " ".join(part for part in (before, FORBIDDEN, after) if part)
    shown, reason = await shown_of(pieces_of(text, cuts, bare_end=bare_end), look_every, hold_back)
    assert reason == "content_filter"
    end = len(before) + bool(before) + len(FORBIDDEN)
    assert text.startswith(shown) and len(shown) < end, "a part of `committee` may be shown, but not the word"


@given(WORDS, CUTS, st.booleans(), st.integers(1, 60), st.integers(0, 60))
@example("committee", [7], False, 1, 0)
async def test_a_harmless_answer_is_shown_whole(text, cuts, bare_end, look_every, hold_back):
    assert await shown_of(pieces_of(text, cuts, bare_end=bare_end), look_every, hold_back) == (text, "stop")


@given(CUTS, st.integers(1, 60), st.integers(0, 60))
async def test_reasoning_is_looked_at_and_shown_as_reasoning(cuts, look_every, hold_back):
    for last, ends in ((" a mill grinds", "stop"), (f" a {FORBIDDEN} grinds", "content_filter")):
        pieces = pieces_of("so it turns" + last, cuts, bare_end=True)
        for piece in pieces[:-1]:
            piece.write([Reasoning(piece.text)])
            piece.reasoning_tokens = len(piece.token_ids)
        pieces[-1].write(["Hello."])
        watch = OutputModeration(judge, look_every, hold_back)
        shown = [out for piece in pieces if (out := await watch.look(piece)) is not None]
        end = next(place for place, out in enumerate(shown) if out.finish_reason is not None)
        told = "".join(out.reasoning for out in shown[: end + 1])
        assert shown[end].finish_reason == ends
        assert ("so it turns" + last).startswith(told) and FORBIDDEN not in told.split()
        if ends == "stop":
            assert told == "so it turns" + last and "".join(out.text for out in shown) == "Hello."
