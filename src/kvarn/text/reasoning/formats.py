"""The formats in which models write reasoning, which one a model writes, and where in it an answer's content begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from kvarn.text.reasoning.harmony import CHANNEL, CONSTRAIN, END, MESSAGE, START, HarmonySplitter
from kvarn.text.reasoning.splitter import ReasoningPhase, ReasoningSplitter, TagSplitter
from kvarn.text.tokenizer import Tokenizer

_TAIL_TOKENS = 64
"""Tokens at the end of a prompt that are looked at: what a template ends an empty piece of reasoning with has fewer,
even where each byte is a token."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    name: str
    starts: tuple[str, ...]  # texts, any of which begins the reasoning
    ends: tuple[str, ...]
    """Texts, any of which begins, and any of which ends the reasoning: content begins right after."""
    close: str
    """Text that ends reasoning which the prompt has opened, when the prompt also has the answer's beginning."""
    splitter: Callable[[ReasoningPhase], ReasoningSplitter]
    """Makes a splitter for one choice of one answer, which begins in this phase."""
    markers: tuple[str, ...]
    """Tokens that mark reasoning: the splitter must see them where they are special ones, which are no part of the
    text."""
    opened: bool = False
    """Whether an answer begins inside the reasoning where the prompt says nothing of it."""

    @property
    def tagged(self) -> bool:
        """Whether it has a tag for its beginning and one for its end."""
        return len(self.starts) == len(self.ends) == 1

    def phase_after(self, tail: str, begun: str = "") -> ReasoningPhase:
        """The phase in which an answer begins. `tail`: the end of the prompt, special tokens included; `begun`:
        beginning of the answer in it (a message that is continued, the opening of a call)."""
        last_start, last_end = (_last(begun, tags) for tags in (self.starts, self.ends))
        if last_start > last_end:
            return ReasoningPhase.INSIDE
        if begun.strip():
            return ReasoningPhase.AFTER
        ending = tail.rstrip()
        if ending.endswith(self.ends):
            return ReasoningPhase.AFTER
        return ReasoningPhase.INSIDE if self.opened or ending.endswith(self.starts) else ReasoningPhase.BEFORE

    def phase_after_prompt(self, prompt: Sequence[int], tokenizer: Tokenizer, begun: str = "") -> ReasoningPhase:
        return self.phase_after(tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special_tokens=False), begun)


def _tags(name: str, starts: tuple[str, ...], ends: tuple[str, ...], *, opened: bool = False) -> ReasoningFormat:
    splitter = partial(TagSplitter, starts=starts, ends=ends)
    return ReasoningFormat(name, starts, ends, f"\n{ends[0]}\n\n", splitter, starts + ends, opened)


QWEN3 = _tags("qwen3", ("<think>",), ("</think>",))
DEEPSEEK_R1 = _tags("deepseek_r1", ("<think>",), ("</think>",), opened=True)
MISTRAL = _tags("mistral", ("[THINK]",), ("[/THINK]",))
SEED_OSS = _tags("seed_oss", ("<seed:think>",), ("</seed:think>",))
GRANITE = _tags(
    "granite",
    ("Here is my thought process:", "Here's my thought process:"),
    ("Here is my response:", "Here's my response:"),
)
GPT_OSS = ReasoningFormat(
    "gpt_oss",
    (f"{CHANNEL}analysis{MESSAGE}",),
    (f"{CHANNEL}final{MESSAGE}", f"{CHANNEL}final {CONSTRAIN}json{MESSAGE}"),
    f"{END}{START}assistant",
    HarmonySplitter,
    (START, CHANNEL, CONSTRAIN, MESSAGE, END),
)
FORMATS = {each.name: each for each in (QWEN3, DEEPSEEK_R1, MISTRAL, SEED_OSS, GRANITE, GPT_OSS)}


def find_reasoning_format(setting: str, template: str) -> ReasoningFormat | None:
    """The format of a model; None where it does not reason. `setting`: `models[].reasoning_format`; `template`: all
    text of its chat templates. Tokens tell nothing: models that do not reason have them too."""
    if setting != "auto":
        return FORMATS.get(setting)
    if CHANNEL in template and MESSAGE in template:
        return GPT_OSS
    return next((each for each in (QWEN3, MISTRAL, SEED_OSS, GRANITE) if each.ends[0] in template), None)


def _last(text: str, tags: tuple[str, ...]) -> int:
    return max(text.rfind(tag) for tag in tags)
