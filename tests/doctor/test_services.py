from __future__ import annotations

import socket

import pytest

from kvarn.config.schema import KvarnConfig
from kvarn.doctor.finding import Finding, Level
from kvarn.doctor.services import ClockReading, check_clock, check_schema, check_services
from kvarn.store.migrate import SchemaState
from mock_kafka import MockKafka


async def found_with(**sections) -> dict[str, Finding]:
    return {each.check: each async for each in check_services(KvarnConfig.model_validate(sections))}


@pytest.mark.parametrize(
    ("other", "skew_s", "level"),
    [(100.2, 0.0, Level.OK), (101.0, 0.5, Level.OK), (110.0, 9.5, Level.WARNING), (90.0, -10.0, Level.WARNING)],
)
def test_a_clock_is_wrong_by_what_the_time_of_the_question_cannot_explain(other, skew_s, level):
    reading = ClockReading(other, before=100.0, after=100.5)
    assert reading.skew_s == pytest.approx(skew_s)
    assert check_clock("Redis", reading).level is level


@pytest.mark.parametrize(
    ("state", "migrates", "level"),
    [
        (SchemaState(), True, Level.OK),
        (SchemaState("0019"), False, Level.OK),
        (SchemaState("0018"), True, Level.OK),
        (SchemaState("0018"), False, Level.ERROR),
        (SchemaState("0020"), True, Level.ERROR),
        (SchemaState("0020", compatible_since="0019"), True, Level.OK),
    ],
)
def test_a_schema_is_as_needed_or_upgraded_at_the_start(state, migrates, level):
    assert check_schema(state, "0019", migrates=migrates).level is level


async def test_a_database_that_answers_is_examined(database_url):
    found = await found_with(store={"url": database_url})
    assert {each.level for each in found.values()} == {Level.OK}
    assert ("clock" in found) == database_url.startswith("postgres")


async def test_a_database_that_is_not_there_yet_is_not_made(tmp_path):
    found = await found_with(data_dir=str(tmp_path / "kvarn"))
    assert found["database"].level is Level.OK and "first start" in found["database"].detail
    assert not (tmp_path / "kvarn").exists()


async def test_services_that_do_not_answer_are_errors_that_name_no_password():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens there
        where = f"127.0.0.1:{closed.getsockname()[1]}"
        found = await found_with(
            store={"url": f"postgresql://kvarn:top-secret@{where}/kvarn"},
            limits={"redis_url": f"redis://:top-secret@{where}/0"},
        )
    assert [found[name].level for name in ("database", "Redis")] == [Level.ERROR] * 2
    assert "top-secret" not in str(found) and "limits.redis_url" in found["Redis"].advice


async def test_redis_is_asked_for_its_version_and_its_time(redis_url):
    found = await found_with(limits={"redis_url": redis_url})
    assert found["Redis"].level is found["clock"].level is Level.OK


async def test_kafka_is_asked_for_the_topic():
    with MockKafka() as kafka:
        found = await found_with(metering={"kafka": {"bootstrap_servers": kafka.servers, "topic": "usage"}})
    assert "usage" in found["Kafka"].detail and found["Kafka"].level is not Level.ERROR


async def test_a_folder_of_blobs_is_looked_into(tmp_path):
    found = await found_with(data_dir=str(tmp_path), store={"blobs": str(tmp_path / "none")})
    assert found["blobs"].level is Level.OK and "first file" in found["blobs"].detail
    found = await found_with(data_dir=str(tmp_path), store={"blobs": "nonsense://bucket"})
    assert found["blobs"].level is Level.ERROR
