from __future__ import annotations

import socket

import pytest

from kvarn.config.gateway import GatewayConfig
from kvarn.doctor.finding import Level
from kvarn.doctor.server import check_answers, check_port, check_server

VERSION = {"version": "0.2.0"}
READY = {"models": {"chat": {"ready": True, "state": "ready"}}, "database": "up"}
LOADING = {"ready": False, "state": "loading", "stage": "load weights", "progress": 0.5}


def test_a_port_is_free_or_chosen_at_the_start():
    assert check_server(GatewayConfig(port=0))[0].level is Level.OK
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "is free" in check_server(GatewayConfig(port=port))[0].detail


def test_an_address_of_another_machine_is_an_error():
    found = check_port(GatewayConfig(host="192.0.2.1", port=9))
    assert found.level is Level.ERROR and "192.0.2.1:9" in found.detail


@pytest.mark.parametrize(
    ("version", "ready", "levels", "says"),
    [
        (VERSION, READY, [Level.OK, Level.OK], "0.2.0 answers"),
        ({"version": "0.1.0"}, READY, [Level.WARNING, Level.OK], "0.2.0 is installed"),
        (VERSION, READY | {"models": {"chat": LOADING}}, [Level.OK, Level.WARNING], "load weights 50%"),
        (
            VERSION,
            READY | {"models": {"chat": LOADING | {"error": "no memory"}}},
            [Level.OK, Level.WARNING],
            "no memory",
        ),
        (VERSION, READY | {"database": "away"}, [Level.OK, Level.OK, Level.WARNING], "away"),
        ({}, {}, [Level.ERROR], "another program"),
        (VERSION, {"models": ["chat"]}, [Level.ERROR], "another program"),
    ],
)
def test_a_server_tells_its_version_and_its_models(version, ready, levels, says):
    found = check_answers("http://127.0.0.1:8000", version, ready, installed="0.2.0")
    assert [each.level for each in found] == levels
    assert any(says in each.detail for each in found)
