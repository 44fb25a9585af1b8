"""What a request keeps, and what it lets go of, while its name is resolved and models are tried for it."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fake_replica import GENERATE_CARD, FakeReplica
from kvarn.answers.catalog import Catalog
from kvarn.answers.model_routes import ModelRoutes
from kvarn.answers.record import RequestRecord
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ServedModel
from kvarn.observe.model_choice import ModelChoiceMetrics
from kvarn.replica.client.protocol import ReplicaState


@pytest.fixture
def versions(server: Any) -> list[ServedModel]:
    """Two versions of a model, with a ready replica each."""
    tiny = server.served["tiny"]
    made = [
        ServedModel("tiny", tiny.config, [FakeReplica(GENERATE_CARD)], tiny.directory, text=tiny.text, version=number)
        for number in (1, 2)
    ]
    for each in made:
        each.versions = made
    return made


def routes_of(*models: ServedModel) -> ModelRoutes:
    table = ModelTable({model.name: model for model in models})
    return ModelRoutes(table, [], ModelChoiceMetrics(CollectorRegistry()), lambda *_: None)


def test_a_request_keeps_the_version_that_was_drawn_for_it_while_that_is_ready(server, versions):
    routes = routes_of(versions[0])
    catalog, drawn = Catalog(routes.models, routes, server.gateway.catalog.held_requests), set()
    for number in range(40):
        record = RequestRecord(f"r{number}")
        found = {catalog.find(record, "tiny").version for _ in range(5)}
        assert len(found) == 1
        drawn |= found
    assert drawn == {1, 2}
    kept = catalog.find(record, "tiny")
    next(iter(kept.replicas.values())).state = ReplicaState.DOWN
    assert catalog.find(record, "tiny").version == 3 - kept.version
