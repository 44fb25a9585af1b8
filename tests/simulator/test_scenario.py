"""Scenarios from files and flags, and what is wrong with them in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvarn.simulator import ScenarioError, load_scenario, simulate
from kvarn.simulator.run import model_groups
from kvarn.simulator.scenario import scenario_of
from simulated_fleet import modelled, requests, scenario

MODEL = {"name": "m", "path": "none"}
REPLICA = msgspec.to_builtins(modelled())


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_json_and_toml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "replica.json").write_text(json.dumps({"replica": REPLICA}))
    yaml = "config: {models: [{name: m, path: none}]}\nreplicas: {m: replica.json}\nseed: 3\n"
    toml = 'seed = 3\n[replicas]\nm = "replica.json"\n[[config.models]]\nname = "m"\npath = "none"\n'
    whole = json.dumps({"config": {"models": [MODEL]}, "replicas": {"m": "replica.json"}, "seed": 3})
    read = [
        load_scenario(written(tmp_path, name, text))
        for name, text in (("a.yaml", yaml), ("b.toml", toml), ("c.json", whole))
    ]
    assert read[0] == read[1] == read[2]
    assert read[0].replicas["m"] == modelled()


def test_a_written_scenario_is_read_as_it_was() -> None:
    before = scenario({"replicas": 3})
    assert type(before).model_validate_json(before.model_dump_json()) == before


def test_a_changed_setting_is_a_scenario_of_its_own() -> None:
    before = scenario()
    changed = before.changed(["models.0.replicas=3", "models.0.engine.token_budget=512", "duration_s=5"])
    model = changed.config.models[0]
    assert (model.replicas, model.engine.token_budget, changed.duration_s) == (3, 512, 5.0)
    assert before.config.models[0].replicas == 1


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("models.0.replikas=3", "models.0.replikas: is not a known setting"),
        ("models.7.replicas=3", "there is no models.7"),
        ("models.0.replicas", "write it as path=value"),
        ("models.0.replicas=many", "valid integer"),
        ("replicas.m.kv_blocks=none", "kv_blocks"),
        ("replicas.m.gateway_s=-1", "Expected `float` >= 0.0"),
        ("replicas.m.speed=2", "'speed' is no field of a modelled replica"),
    ],
)
def test_a_setting_that_cannot_be_is_explained(setting: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        scenario().changed([setting])


def test_a_device_of_the_table_makes_the_replica_that_the_settings_ask_for() -> None:
    raw = {
        "config": {"models": [{"name": "m", "path": "Qwen/Qwen3-8B"}]},
        "devices": {"m": {"device": "h100"}},
    }
    plain = scenario_of(raw, Path(), "here")
    quantised = plain.changed(["models.0.quantization=fp8"])
    two = plain.changed(["models.0.tensor_parallel_size=2"])
    assert quantised.replicas["m"].kv_blocks > plain.replicas["m"].kv_blocks
    assert two.replicas["m"].devices == 2
    with pytest.raises(ScenarioError, match="here: there is no device 'h999'"):
        scenario_of(raw | {"devices": {"m": {"device": "h999"}}}, Path(), "here")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"replicas": {}}, "no modelled replica of 'm'"),
        ({"replicas": {"m": REPLICA, "n": REPLICA}}, "not among the models"),
        ({"traffic": [{"preset": "azure"}]}, "take one of azure-conv"),
        ({"traffic": [{"preset": "batch", "trace": "x"}]}, "leave one out"),
        ({"traffic": [{"model": "n"}]}, "name one of m"),
        ({"faults": [{"kind": "kill", "at_s": 1, "model": "n"}]}, "name one of m"),
        ({"rollouts": [{"model": "n"}]}, "name one of m"),
        ({"traffic": [{"pattern": "wild"}]}, "is no pattern"),
        ({"traffic": [{"prompt_tokens": [5, 2]}]}, "the smaller one first"),
        ({"faults": [{"kind": "kill"}]}, "give one of both"),
        ({"replicas": {"m": "nowhere.json"}}, "nowhere.json: No such file"),
    ],
)
def test_a_scenario_that_cannot_be_is_explained(part: dict[str, Any], words: str) -> None:
    raw = {"config": {"models": [MODEL]}, "replicas": {"m": REPLICA}} | part
    with pytest.raises(ScenarioError, match=words):
        scenario_of(raw, Path("/nonexistent"), "here")


def test_a_scenario_without_traffic_says_so() -> None:
    with pytest.raises(ScenarioError, match="no traffic"):
        simulate(scenario())


def test_models_that_share_waiting_engines_are_simulated_together() -> None:
    raw = {
        "config": {"models": [{"name": name, "path": "none"} for name in "ab"]},
        "replicas": dict.fromkeys("ab", REPLICA),
    }
    apart = scenario_of(raw, Path(), "here")
    assert model_groups(apart) == [["a"], ["b"]]
    assert model_groups(apart.changed(["fleet.warm_pool=1"])) == [["a", "b"]]


@pytest.mark.parametrize(("asked", "answers"), [({}, ["a", "b"]), ({"model": "b"}, ["b", "b"])])
def test_a_trace_names_the_models_it_asks_unless_its_stream_has_one(
    tmp_path: Path, asked: dict[str, str], answers: list[str]
) -> None:
    line = {"input_length": 32, "output_length": 4, "hash_ids": [1]}
    lines = [{**line, "timestamp": 10.0 * number, "model": model} for number, model in enumerate("ab")]
    (tmp_path / "trace.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
    raw = {
        "config": {"models": [{"name": name, "path": "none"} for name in "ab"]},
        "replicas": dict.fromkeys("ab", REPLICA),
        "traffic": [{"trace": "trace.jsonl", "trace_format": "mooncake", "max_requests": 2, **asked}],
        "duration_s": 10,
    }
    table = simulate(scenario_of(raw, tmp_path, "here")).requests
    assert sorted(table.names[each] for each in table.model) == answers


def test_traffic_for_a_model_that_is_not_there_is_refused() -> None:
    two = {"models": [{"name": name, "path": "none"} for name in "mn"]}
    here = scenario_of({"config": two, "replicas": {"m": REPLICA, "n": REPLICA}}, Path(), "here")
    (asked,) = requests([0.0])
    with pytest.raises(ScenarioError, match="asks for the model 'other'"):
        simulate(here, [msgspec.structs.replace(asked, model="other")])
