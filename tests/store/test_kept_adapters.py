"""Adapters of a deployment: kept in the database, and given to versions that were starting when they were loaded."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fake_replica import GENERATE_CARD, FakeReplica
from kvarn.catalog.adapters import AdapterReconciler
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ServedModel
from kvarn.config.model import ModelConfig
from kvarn.replica.client.protocol import AdapterChangeError
from kvarn.store.engine import Store
from kvarn.store.repositories.deployments import drop_adapter, keep_adapter, kept_adapters, read_desired
from kvarn.wire.messages import AdapterInfo

LAW = AdapterInfo(name="law", path="/law", digest="1")


async def test_an_adapter_belongs_to_its_deployment_until_it_is_unloaded(store: Store) -> None:
    for adapter in (LAW, AdapterInfo(name="news", path="/news"), AdapterInfo(name="law", path="/other", digest="2")):
        await keep_adapter(store, "m", msgspec.to_builtins(adapter), "me")
    (row,) = await read_desired(store)
    assert (row["version"], row["spec"]) == (0, None)
    assert [(each["name"], each["path"]) for each in row["adapters"]] == [("news", "/news"), ("law", "/other")]
    await drop_adapter(store, "m", "news")
    await drop_adapter(store, "n", "law")
    assert [each["name"] for each in await kept_adapters(store, "m")] == ["law"]
    assert await kept_adapters(store, "n") == []


async def test_a_version_that_was_starting_is_given_what_it_lacks_and_a_failure_is_not_repeated(
    store: Store, tmp_path: Path
) -> None:
    config = ModelConfig(name="m", path="m")
    old, new = (FakeReplica(GENERATE_CARD) for _ in range(2))
    versions = [ServedModel("m", config, [each], tmp_path, version=number) for number, each in enumerate((old, new))]
    for each in versions:
        each.versions = versions
    old.adapters = {"law": LAW}
    await keep_adapter(store, "m", msgspec.to_builtins(LAW), "me")
    reconciler = AdapterReconciler(ModelTable({"m": versions[0]}), store)
    new.adapter_problem = AdapterChangeError("invalid", "it has changed")
    await reconciler.look()
    assert "law" not in new.adapters
    new.adapter_problem = None
    await reconciler.look()
    assert "law" not in new.adapters  # not again and again
    new.starts += 1
    await reconciler.look()
    assert new.adapters["law"].path == "/law"


async def test_what_was_unloaded_while_a_version_started_is_unloaded_there_and_nothing_else(
    store: Store, tmp_path: Path
) -> None:
    config = ModelConfig.model_validate({"name": "m", "path": "m", "adapters": [{"name": "news", "path": "/news"}]})
    old, new = (FakeReplica(GENERATE_CARD) for _ in range(2))
    versions = [ServedModel("m", config, [each], tmp_path, version=number) for number, each in enumerate((old, new))]
    for each in versions:
        each.versions = versions
    reconciler = AdapterReconciler(ModelTable({"m": versions[0]}), store)
    kept, news = msgspec.structs.replace(LAW, kept=True), AdapterInfo(name="news", path="/news")
    beginning = AdapterInfo(name="beginning", path="/beginning", digest="2")  # a request loads it just now
    old.adapters = {"news": news, "beginning": beginning}
    new.adapters = {"news": news, "law": kept}  # it was started with what the deployment had then
    await reconciler.look()
    assert (set(old.adapters), set(new.adapters)) == ({"news", "beginning"}, {"news"})

    new.adapters["law"] = kept
    for each in versions:
        each.versions = []  # the other version is gone by now
    await AdapterReconciler(ModelTable({"m": versions[1]}), store).look()
    assert set(new.adapters) == {"news"}


def test_a_model_without_replicas_knows_the_adapters_of_its_configuration_and_its_deployment(tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"name": "m", "path": "m", "adapters": [{"name": "news", "path": "/news"}]})
    model = ServedModel("m", config, [], tmp_path, kept_adapters=[LAW])
    assert set(model.adapters) == {"news", "law"}
    found = ModelTable({"m": model}).find_adapter("m:law")
    assert found is not None and found[0] is model
    replica = FakeReplica(GENERATE_CARD)
    replica.adapters = {"law": LAW}
    model.replicas.add("r", replica)
    assert set(model.adapters) == {"law"}
    model.replicas.remove("r")
    assert set(model.adapters) == {"law"}
