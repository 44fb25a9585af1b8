"""The run that a model's newest run of a set is measured by."""

from __future__ import annotations

from typing import Any

from kvarn.evaluations.baseline import ScoredRun, choose_baseline, newest_scores
from kvarn.evaluations.worker import joined_version, separate_versions, show_scores
from kvarn.observe.metrics import GatewayMetrics
from kvarn.store.ids import DEFAULT_ORGANIZATION


def run(name: str, version: str = "1", **changes: Any) -> ScoredRun:
    fields: dict[str, Any] = {
        "set_id": "s",
        "set_name": "set",
        "organization_id": "o",
        "set_version": 1,
        "model": "m",
        "score": 0.5,
        "passed": 1,
        "total": 2,
        "created_at": 0,
        "pinned": False,
    }
    return ScoredRun(id=name, model_version=version, **fields | changes)


def baseline(*newest_first: ScoredRun) -> str | None:
    found = choose_baseline(newest_first)
    return None if found is None else found.id


def test_a_new_version_is_measured_by_the_latest_run_of_the_one_before() -> None:
    assert baseline(run("e", "3"), run("d", "2"), run("c", "2"), run("b", "1")) == "d"


def test_a_version_that_is_run_again_is_measured_by_the_version_before_or_its_first_run() -> None:
    assert baseline(run("d", "2"), run("c", "2"), run("b", "1")) == "b"
    assert baseline(run("c"), run("b"), run("a")) == "a"


def test_a_pinned_run_is_what_counts_of_the_same_items() -> None:
    assert baseline(run("d", "3"), run("c", "2"), run("b", "1", pinned=True)) == "b"
    assert baseline(run("d", "3"), run("c", "2"), run("b", "1", pinned=True, set_version=9)) == "c"


def test_a_first_run_and_one_of_other_items_have_none_to_be_measured_by() -> None:
    assert baseline(run("a")) is None
    assert baseline(run("b"), run("a", set_version=2)) is None
    assert baseline(run("a", pinned=True)) == "a"


def test_each_model_has_a_score_in_each_set_and_the_newest_are_shown() -> None:
    runs = [run("d"), run("c", model="n"), run("b", set_id="t"), run("a", score=0.9)]
    assert [(each.run.id, each.baseline and each.baseline.id) for each in newest_scores(runs, 9)] == [
        ("d", "a"),
        ("c", None),
        ("b", None),
    ]
    assert len(newest_scores(runs, 2)) == 2


def test_a_run_that_several_versions_answered_says_so() -> None:
    assert joined_version([("m", "1")]) == ("m", "1")
    assert joined_version([("m", "1"), ("m", "2")]) == ("m", "several")
    assert joined_version([("n", "1"), ("m", "1")]) == ("m, n", "several")
    assert joined_version([]) == ("", "")


def test_a_run_that_goes_on_is_told_as_if_it_had_not_stopped() -> None:
    for versions in ({("m", "1")}, {("m", "1"), ("m", "2")}, {("a", "1"), ("b", "1")}):
        told = joined_version(versions)
        assert joined_version(separate_versions(*told) | {min(versions)}) == told
    assert separate_versions("", "") == set()


def test_sets_of_one_name_are_shown_by_their_ids() -> None:
    metrics, mine = GatewayMetrics(["m"]), {"organization_id": DEFAULT_ORGANIZATION}
    runs = [run("d", set_id="s", score=0.9, **mine), run("c", set_id="t", score=0.1, **mine)]
    runs += [run("b", set_id="u", set_name="other", **mine), run("a", set_id="v", set_name="other")]
    show_scores(newest_scores(runs, 9), metrics)
    (family,) = metrics.quality_score.collect()
    shown = {sample.labels["set"]: sample.value for sample in family.samples}
    assert shown == {"s": 0.9, "t": 0.1, "other": 0.5, "v": 0.5}
