"""Every table's rows go one day, or it is known why not."""

from __future__ import annotations

from kvarn.store.models import (
    AuditEntry,
    Base,
    BilledEvent,
    Change,
    ChunkVector,
    Deployment,
    DeploymentVersion,
    ErasedOrganization,
    Lease,
    Organization,
    OutboxEntry,
    RolloutSamples,
    StoredChunk,
    StoredRollout,
    VersionNumber,
)
from kvarn.store.repositories.organization_deletion import USAGE
from kvarn.store.repositories.retention import STORED

KEPT = {
    AuditEntry: "for the platform's administrators: a log that its subject can delete would be none",
    ErasedOrganization: "its id alone, so that no event that was still on its way brings erased usage back",
    Change: "ids alone: old ones are deleted, deletions are told to engines that start later",
    Lease: "of nobody: a row for each piece of work",
    Deployment: "the platform's own",
    DeploymentVersion: "the platform's own: to go back to",
    VersionNumber: "the platform's own: a number is not used twice",
    StoredRollout: "the platform's own",
    RolloutSamples: "the platform's own: latencies and lengths, deleted when they are counted",
}
SWEPT = {
    StoredChunk: "in steps, after the row of its file or store, which decides whether it is there",
    ChunkVector: "with its chunk",
}
WITH_USAGE = {OutboxEntry: "by its foreign key", BilledEvent: "by name: it may lie in a database without the events"}


def goes_with_its_organisation(table) -> bool:
    keys = [key for key in table.foreign_keys if key.ondelete == "CASCADE"]
    return any(
        key.column.table is Organization.__table__ or goes_with_its_organisation(key.column.table) for key in keys
    )


def test_every_table_goes_with_its_organisation_or_with_its_usage_or_is_kept() -> None:
    for mapper in Base.registry.mappers:
        fates = [
            mapper.class_ is Organization or goes_with_its_organisation(mapper.local_table),
            mapper.class_ in {*USAGE, *WITH_USAGE},
            mapper.class_ in KEPT,
            mapper.class_ in SWEPT,
        ]
        assert fates.count(True) == 1, mapper.class_


def test_what_counts_in_the_account_goes_at_its_age() -> None:
    counted = {mapper.class_ for mapper in Base.registry.mappers if "counted_bytes" in mapper.local_table.c}
    assert {model.__name__ for model in counted - {kind.model for kind in STORED}} == {"ConversationItem"}


def test_an_index_leads_to_an_organisations_rows_in_the_order_in_which_they_go() -> None:
    columns = {kind.model: kind.age for kind in STORED} | dict(USAGE)
    for model, along in columns.items():
        table = model.__table__
        ways = [list(index.columns) for index in table.indexes] + [list(table.primary_key.columns)]
        assert [table.c.organization_id, table.c[along]] in [way[:2] for way in ways], model
