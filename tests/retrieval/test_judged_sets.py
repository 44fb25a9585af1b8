"""The judged sets of `benchmarks.retrieval`: judgements that fit their pages, measures that agree with an oracle."""

from __future__ import annotations

import random

import numpy as np
import pytest
from benchmarks.retrieval.generated import generate
from benchmarks.retrieval.measures import Cited, grounding, ndcg, recall, reciprocal_rank
from benchmarks.retrieval.sets import FOLDER, read_docs, read_questions


def test_each_question_about_the_docs_has_its_answer_in_a_page_word_for_word() -> None:
    """A page that is edited fails here: correct the quote in questions.tsv, or judge the question anew."""
    judged = read_docs()
    assert len(judged.questions) >= 150
    assert len({question.text for question in judged.questions}) == len(judged.questions)


def test_the_judgements_of_pages_are_those_of_the_questions() -> None:
    lines = (FOLDER / "docs" / "qrels.txt").read_text(encoding="utf-8").splitlines()
    assert lines == [f"{row['id']} 0 {row['page']} 1" for row in read_questions()]


def test_no_question_is_the_sentence_that_answers_it() -> None:
    for row in read_questions():
        asked, quote = ({word.lower() for word in row[name].split()} for name in ("question", "quote"))
        assert len(asked & quote) < len(asked), row["question"]


def test_a_generated_set_has_each_answer_once_and_is_the_same_each_time() -> None:
    judged = generate(20, 30)
    assert judged == generate(20, 30) != generate(20, 30, seed=8)
    for question in judged.questions:
        ((page, start, end),) = question.spans
        assert judged.pages[page].text[start:end].endswith(".")


def test_measures_agree_with_scikit_learn() -> None:
    from sklearn.metrics import label_ranking_average_precision_score, ndcg_score

    rng = random.Random(4)
    for _ in range(25):
        items = [str(number) for number in range(rng.randint(2, 30))]
        gains = {item: float(rng.choice((0, 0, 0, 1, 3))) for item in items}
        ranking = rng.sample(items, len(items))
        scores = np.array([[-ranking.index(item) for item in items]])
        truth = np.array([[gains[item] for item in items]])
        depth = rng.randint(1, 12)
        if any(gains.values()):
            assert ndcg(ranking, gains, depth) == pytest.approx(ndcg_score(truth, scores, k=depth))
        one = {rng.choice(items): 1.0}
        alone = np.array([[int(item in one) for item in items]])
        expected = label_ranking_average_precision_score(alone, scores)  # of one relevant item: its reciprocal rank
        assert reciprocal_rank(ranking, one) == pytest.approx(expected)
        relevant = {item for item, gain in gains.items() if gain}
        found = len(relevant & set(ranking[:depth])) / len(relevant) if relevant else 0
        assert recall(ranking, gains, depth) == found


def test_an_answer_is_grounded_where_each_quote_is_in_its_document() -> None:
    answer, texts = "It is blue. It is old. It is heavy.", {"a": "The door is blue. Built in 1900."}
    right = Cited(9, 10, "a", 0, 17, "The door is blue.")
    found = grounding(answer, [right, Cited(20, 21, "a", 18, 32, "Built in 1901.")], texts)
    assert (found.sentences, found.covered, found.citations, found.exact) == (3, 2, 2, 1)
    assert (found.coverage, found.groundedness) == (2 / 3, 0.5)
    nothing = grounding("", [], texts)
    assert (nothing.coverage, nothing.groundedness) == (1.0, 1.0)
