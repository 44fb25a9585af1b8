"""Every table has a fate, and exactly one."""

from __future__ import annotations

from collections import Counter

from kvarn.store.models import Base, BilledEvent, Organization
from kvarn.store.repositories.retention.policy import KEPT, OWNED, PARTS, STORED, USAGE


def test_every_table_stands_in_exactly_one_list() -> None:
    stored = [kind.model for kind in STORED]
    listed = Counter([Organization, *stored, *OWNED, *USAGE, *PARTS, *KEPT])
    assert set(listed) == {mapper.class_ for mapper in Base.registry.mappers}
    assert set(listed.values()) == {1}


def test_whatever_names_an_organisation_is_of_a_list_that_goes_by_it_or_says_why_it_stays() -> None:
    by_organization = {*[kind.model for kind in STORED], *OWNED, *USAGE}
    naming = {mapper.class_ for mapper in Base.registry.mappers if "organization_id" in mapper.local_table.c}
    assert by_organization <= naming
    assert naming - by_organization <= {*KEPT, *PARTS}


def test_parts_go_with_their_whole() -> None:
    for part, whole in PARTS.items():
        if part is BilledEvent:  # it may lie in a database without the events: deleted by name
            continue
        keys = [key for key in part.__table__.foreign_keys if key.column.table is whole.__table__]
        assert [key.ondelete for key in keys] == ["CASCADE"], part


def test_an_index_leads_to_an_organisations_rows_in_the_order_in_which_they_go() -> None:
    columns = {kind.model: kind.age for kind in STORED} | dict(USAGE)
    for model, along in columns.items():
        table = model.__table__
        ways = [list(index.columns) for index in table.indexes] + [list(table.primary_key.columns)]
        assert [table.c.organization_id, table.c[along]] in [way[:2] for way in ways], model
