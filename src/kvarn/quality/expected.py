"""The expected answers, and the replicas that deviate from them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from kvarn.quality.probe import GoldenAnswer, difference

_MAX_GAP = 0.05
"""Largest mean difference of log-probabilities between builds that hold their weights alike: three times what was
measured between types, instruction sets and kernels (docs/internals/measured_serving.md)."""
_MAX_GAP_QUANTIZED = 1.5
"""The same if one holds them in fewer bits: three times what was measured for int4."""


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """All that the bits of an answer depend on. Replicas of one build answer equally, to the last bit."""

    weights: str  # fingerprint of the checkpoint
    version: str
    dtype: str
    quantization: str
    kernels: str
    kv_dtype: str

    @property
    def exact(self) -> bool:
        """Whether an answer's last bits do not depend on what is in the batch (docs/internals/determinism.md)."""
        return not self.kernels.startswith("torch")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    build: Build
    prompt: str
    token_ids: tuple[int, ...] = ()
    max_tokens: int = 0
    adapter: str = ""  # digest of the adapter


class ExpectedAnswers:
    """The answers that were first given, and who gives others."""

    def __init__(self) -> None:
        self.answers: dict[Question, GoldenAnswer] = {}

    def agrees(self, question: Question, answer: GoldenAnswer) -> bool:
        """Whether an answer is the expected one; the first is, unless it is far from those of other builds."""
        expected = self.answers.get(question)
        if expected is None:
            others = self._of_other_builds(question)
            if others and all(_far_apart(answer, other, question.build, build) for build, other in others):
                return False
            self.answers[question] = answer
            return True
        return self._same(question, answer, expected)

    def deviating(
        self, question: Question, answers: Mapping[str, GoldenAnswer], restarted: Collection[str] = ()
    ) -> set[str]:
        """Which of the replicas of one build, who do not all agree with what is expected, deviate. The answer that most
        give is right; of two that equally many give, that of more replicas that were just `restarted`, with weights
        loaded anew; else the expected one. It is expected from then on. A replica that is alone deviates: `agrees` has
        said so."""
        groups: list[tuple[GoldenAnswer, set[str]]] = []
        for replica, answer in answers.items():
            for representative, members in groups:
                if self._same(question, answer, representative):
                    members.add(replica)
                    break
            else:
                groups.append((answer, {replica}))
        expected = self.answers.get(question)

        def rank(group: tuple[GoldenAnswer, set[str]]) -> tuple[int, int, bool]:
            answer, members = group
            is_expected = expected is not None and self._same(question, answer, expected)
            return len(members), len(members.intersection(restarted)), is_expected

        right, members = max(groups, key=rank)
        if len(answers) == 1 and (expected is None or not self._same(question, right, expected)):
            return set(members)
        self.answers[question] = right
        return set(answers) - members

    def describe(self, question: Question, answer: GoldenAnswer) -> str:
        expected = self.answers.get(question)
        if expected is None:
            others = self._of_other_builds(question)
            if not others:
                return "nothing to compare with"
            _, expected = others[0]
        found = difference(answer, expected)
        return (
            f"{found.agreement:.0%} of the tokens before the first other one, log-probabilities off by "
            f"{found.largest_gap:.3g} at most and {found.mean_gap:.3g} on average"
        )

    def _same(self, question: Question, one: GoldenAnswer, other: GoldenAnswer) -> bool:
        if question.build.exact:
            return one.equals(other)
        return not _far_apart(one, other, question.build, question.build)

    def _of_other_builds(self, question: Question) -> list[tuple[Build, GoldenAnswer]]:
        return [
            (asked.build, answer)
            for asked, answer in self.answers.items()
            if asked.build != question.build
            and asked.build.weights == question.build.weights
            and msgspec.structs.replace(asked, build=question.build) == question
        ]


def _far_apart(one: GoldenAnswer, other: GoldenAnswer, build: Build, other_build: Build) -> bool:
    """Whether answers are farther apart than other types and kernels make them. The tokens are no measure: where a
    prompt is no text, many are equally likely."""
    limit = _MAX_GAP if build.quantization == other_build.quantization else _MAX_GAP_QUANTIZED
    return not difference(one, other).mean_gap <= limit
