"""Session trees of a tenant: as of when their requests count as having come."""

from __future__ import annotations

from kvarn.fairness.trees import TreeShares


def test_a_request_alone_counts_from_its_arrival():
    shares = TreeShares()
    assert shares.enter("tenant", b"tree", 5.0)[1] == 5.0
    assert shares.enter("tenant", None, 6.0)[1] == 6.0


def test_requests_of_one_tree_count_one_after_the_other_and_others_go_between_them():
    shares = TreeShares()
    helpers = [shares.enter("tenant", b"agent", 0.0)[1] for _ in range(50)]
    person = shares.enter("tenant", b"person", 1.5)[1]
    assert helpers == sorted(set(helpers))
    assert person == 1.5
    assert sum(each <= person for each in helpers) == 2


def test_trees_of_other_tenants_change_nothing():
    shares = TreeShares()
    for _ in range(9):
        shares.enter("one", b"tree", 0.0)
    assert shares.enter("other", b"tree", 0.0)[1] == 0.0


def test_a_tree_whose_requests_are_over_owes_nothing():
    shares = TreeShares()
    here = [shares.enter("tenant", b"tree", 0.0)[0] for _ in range(20)]
    for each in here:
        shares.begin(each, 1.0)
        shares.leave(each)
    assert shares.enter("tenant", b"tree", 2.0)[1] == 2.0


def test_the_distance_follows_how_often_one_begins():
    def last_of_ten(interval_s: float) -> float:
        shares = TreeShares()
        waiting = [shares.enter("tenant", None, 0.0)[0] for _ in range(101)]
        for number, each in enumerate(waiting[:100], 1):
            shares.begin(each, number * interval_s)
            shares.leave(each)
        return [shares.enter("tenant", b"tree", 1000.0)[1] for _ in range(10)][-1] - 1000.0

    assert 8.0 < last_of_ten(4.0) / last_of_ten(0.4) < 12.0


def test_nobody_is_put_off_for_longer_than_ten_minutes():
    shares = TreeShares()
    assert max(shares.enter("tenant", b"tree", 0.0)[1] for _ in range(10_000)) == 600.0
