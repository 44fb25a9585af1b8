"""How the URL of a database is written, and that what is secret in it is told to nobody."""

from __future__ import annotations

import pytest

from kvarn.config.schema import KvarnConfig
from kvarn.store.connecting import with_hosts_apart
from kvarn.store.engine import Store, store_url
from kvarn.store.errors import StoreError


def config_of(url: str) -> KvarnConfig:
    return KvarnConfig.model_validate({"store": {"url": url}})


@pytest.mark.parametrize(
    ("given", "hosts", "port"),
    [
        ("postgresql://u:p@a:1,b:2/n?sslmode=require", ("a:1", "b:2"), None),
        ("postgres://a,b:6/n", ("a:5432", "b:6"), None),
        ("postgresql://u@a:7/n", None, 7),
        ("postgresql://u:p@a:7,b", ("a:7", "b:5432"), None),
    ],
)
def test_hosts_are_written_as_libpq_has_them(given: str, hosts: tuple[str, ...] | None, port: int | None) -> None:
    url = store_url(config_of(given))
    assert url.query.get("host") == hosts and url.port == port and url.database in ("n", "")
    if "sslmode" in given:
        assert url.query["sslmode"] == "require" and (url.username, url.password) == ("u", "p")


def test_a_url_of_one_host_stays_as_it_is() -> None:
    for url in ("sqlite:////tmp/a,b.db", "postgresql://u@h/n?options=-c%20a=1,2", "postgresql://u@h:5/n"):
        assert with_hosts_apart(url) == url


def test_a_port_that_is_none_is_told() -> None:
    with pytest.raises(StoreError, match=r"store\.url is no database URL"):
        store_url(config_of("postgresql://kvarn@host:port/name"))


@pytest.mark.parametrize("hosts", ["db", "db:7", "a,b", "a:6,b:7"])
async def test_a_comma_in_a_password_belongs_to_the_password(hosts: str) -> None:
    config = config_of(f"postgresql://kvarn:s3c,ret@{hosts}/n")
    url = store_url(config)
    assert (url.username, url.password, url.database) == ("kvarn", "s3c,ret", "n")
    named = [f"{host.partition(':')[0]}:{host.partition(':')[2] or 5432}" for host in hosts.split(",")]
    assert list(url.query.get("host") or [f"{url.host}:{url.port or 5432}"]) == named
    await Store.open(config).close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://kvarn:s3c@ret,x@db/kvarn",
        "postgresql://kvarn:s3c@ret@db/kvarn",
        "postgresql://kvarn:s3cret@a:port,b/kvarn",
        "postgresql://kvarn:s3c@ret,x@a,b/kvarn",
        "postgresql://kvarn:s3c/ret,x@a:1,b:2/kvarn",
    ],
)
def test_of_a_url_that_is_none_nothing_is_told(url: str) -> None:
    with pytest.raises(StoreError, match=r"store\.url is no database URL") as raised:
        Store.open(config_of(url))
    assert "s3c" not in str(raised.value) and "ret," not in str(raised.value)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
