"""Real services for the tests: PostgreSQL and Redis on free ports of this machine, and librdkafka's mock cluster.

Each is started once, by the first test that asks for it, and ended with the tests. Where its programs are missing the
tests that need it are skipped, and say so. `TEST_STORES=sqlite` leaves PostgreSQL out.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from sqlalchemy import make_url

from kvarn.store.engine import Store
from kvarn.store.migrate import upgrade
from mock_kafka import MockKafka

START_S = 60.0
PORTS = (10_000, 32_000)
"""Below the system's own (`ip_local_port_range`)."""


@dataclass
class Service:
    """A server process on a port of its own, which a test may kill and start again."""

    command: list[str]
    port: int
    home: Path
    user: str | None = None
    ready: Callable[[int], bool] = field(default_factory=lambda: can_connect)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers."""
        log = (self.home / "log").open("ab")
        self.process = subprocess.Popen(
            self.command, stdout=log, stderr=log, cwd=self.home, user=self.user, start_new_session=True
        )
        log.close()
        deadline = time.monotonic() + START_S
        while not self.ready(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.command[0]} did not start:\n{(self.home / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a power failure would."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait(10)


def free_port() -> int:
    """A port nobody listens on, and nobody will: not one of those that the system gives to whoever asks for any."""
    while True:
        port = random.SystemRandom().randrange(*PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def can_connect(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def postgres_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A private PostgreSQL; user `kvarn` needs no password."""
    yield from _serving(make_postgres(tmp_path_factory.mktemp("postgres")))


@pytest.fixture(scope="session")
def redis_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A private Redis that keeps nothing on disk."""
    yield from _serving(make_redis(tmp_path_factory.mktemp("redis")))


def _serving(service: Service) -> Iterator[Service]:
    service.start()
    try:
        yield service
    finally:
        service.kill()


def make_redis(home: Path) -> Service:
    """A Redis not yet started, for tests that kill it. Skips where it is not installed."""
    program = shutil.which("redis-server") or pytest.skip("redis-server is not installed: apt-get install redis-server")
    port = free_port()
    settings = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(home)]
    return Service([program, *settings], port, home)


def make_postgres(home: Path) -> Service:
    """A PostgreSQL not yet started, for tests that kill it. Skips where it is not installed."""
    found = initdb()
    if found is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    user, home = _ordinary_user(home)
    data, port = home / "data", free_port()
    make = [found, "-D", str(data), "-U", "kvarn", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale", "C"]
    subprocess.run(make, check=True, capture_output=True, user=user, cwd=home)
    settings = ["-k", "", "-h", "127.0.0.1", "-p", str(port), "-c", "fsync=off", "-c", "max_connections=200"]
    command = [str(Path(found).with_name("postgres")), "-D", str(data), *settings]
    return Service(command, port, home, user, ready=_postgres_ready)


def initdb() -> str | None:
    """PostgreSQL's program that makes a cluster, where it is installed."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return str(programs[-1]) if programs else shutil.which("initdb")


def _ordinary_user(home: Path) -> tuple[str | None, Path]:
    """PostgreSQL refuses to run as root: whom to run it as, and a home that they may reach. Not below pytest's own
    directory: each session of the tests closes that to others when it starts."""
    if os.geteuid() != 0:
        return None, home
    user = pwd.getpwnam("postgres")
    own = Path(tempfile.mkdtemp(prefix="kvarn-postgres-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    os.chown(own, user.pw_uid, user.pw_gid)
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return "postgres", own


def _postgres_ready(port: int) -> bool:
    if not can_connect(port):
        return False

    async def ask() -> bool:
        import asyncpg

        try:
            connection = await asyncpg.connect(f"postgresql://kvarn@127.0.0.1:{port}/postgres")
        except (OSError, asyncpg.PostgresError):
            return False
        await connection.close()
        return True

    return _in_new_loop(ask())


def _in_new_loop(work: object) -> bool:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return bool(pool.submit(lambda: asyncio.run(work)).result())  # type: ignore[arg-type]


def make_database(port: int, template: str = "template1") -> str:
    """A new database on a running PostgreSQL, empty or a copy of another; its URL."""
    name = f"kvarn_{uuid.uuid4().hex[:12]}"
    _execute(port, f"CREATE DATABASE {name} TEMPLATE {template}")
    return f"postgresql://kvarn@127.0.0.1:{port}/{name}"


def drop_database(url: str) -> None:
    """Remove it, whoever is connected: each takes 12 MB, mostly of memory (see `conftest.py`)."""
    _execute(make_url(url).port, f"DROP DATABASE {make_url(url).database} WITH (FORCE)")


def _execute(port: int | None, statement: str) -> None:
    async def execute() -> bool:
        import asyncpg

        connection = await asyncpg.connect(f"postgresql://kvarn@127.0.0.1:{port}/postgres")
        await connection.execute(statement)
        await connection.close()
        return True

    _in_new_loop(execute())


def stores() -> list[str]:
    """The databases that tests of stored things run on."""
    return os.environ.get("TEST_STORES", "sqlite,postgresql").split(",")


@pytest.fixture(scope="session")
def prepared_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in SQLite with the newest schema and nothing in it. It is copied: to make one takes much longer."""
    path = tmp_path_factory.mktemp("prepared") / "kvarn.db"
    _in_new_loop(_prepare(f"sqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def prepared_postgres(postgres_service: Service) -> str:
    """The same in PostgreSQL: the database's name."""
    url = make_database(postgres_service.port)
    _in_new_loop(_prepare(url))
    return url.rpartition("/")[2]


async def _prepare(url: str) -> bool:
    store = _open(url)
    await upgrade(store)
    await store.close()
    return True


def _open(database_url: str) -> Store:
    url = make_url(database_url)
    driver = "sqlite+aiosqlite" if url.get_backend_name() == "sqlite" else "postgresql+asyncpg"
    return Store(url.set(drivername=driver), timeout_s=20)


@pytest.fixture(params=stores())
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database with the newest schema and nothing in it, for `store.url`: once in SQLite, once in
    PostgreSQL."""
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("prepared_sqlite"), tmp_path / "kvarn.db")
        yield f"sqlite:///{tmp_path}/kvarn.db"
        return
    service: Service = request.getfixturevalue("postgres_service")
    url = make_database(service.port, request.getfixturevalue("prepared_postgres"))
    yield url
    drop_database(url)


@pytest.fixture
def empty_database_url(database_url: str, tmp_path: Path) -> Iterator[str]:
    """URL of a database without a schema, once in SQLite, once in PostgreSQL."""
    port = make_url(database_url).port
    if port is None:
        yield f"sqlite:///{tmp_path}/empty.db"
        return
    url = make_database(port)
    yield url
    drop_database(url)


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store, None]:
    """Such a database, open."""
    store = _open(database_url)
    store.is_prepared = True
    yield store
    await store.close()


@pytest.fixture
def redis_url(redis_service: Service) -> str:
    """URL of the private Redis."""
    return f"redis://127.0.0.1:{redis_service.port}/0"


@pytest.fixture(scope="session")
def kafka_servers() -> Iterator[str]:
    """Brokers of librdkafka's mock cluster."""
    with MockKafka() as cluster:
        yield cluster.servers


@pytest.fixture
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A running PostgreSQL of the test's own, which it may kill and start again; see `make_database`."""
    service = make_postgres(tmp_path_factory.mktemp("own-postgres"))
    yield from _serving(service)
    shutil.rmtree(service.home, ignore_errors=True)


@pytest.fixture
def standby(own_postgres: Service) -> Iterator[Service]:
    """A second PostgreSQL that follows `own_postgres`."""
    data = own_postgres.home / "standby"
    program = Path(own_postgres.command[0]).with_name("pg_basebackup")
    first = ["-h", "127.0.0.1", "-p", str(own_postgres.port), "-U", "kvarn"]
    make = [str(program), *first, "-D", str(data), "-R", "-c", "fast"]
    subprocess.run(make, check=True, capture_output=True, user=own_postgres.user, cwd=own_postgres.home)
    port = free_port()
    command = [part if part != str(own_postgres.home / "data") else str(data) for part in own_postgres.command]
    command[command.index("-p") + 1] = str(port)
    service = replace(own_postgres, command=command, port=port, process=None)
    service.start()
    yield service
    service.kill()
    shutil.rmtree(data, ignore_errors=True)


@pytest.fixture
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A running Redis of the test's own, which it may kill and start again."""
    yield from _serving(make_redis(tmp_path_factory.mktemp("own-redis")))


@pytest.fixture(name="make_database")
def make_database_fixture() -> Callable[[int], str]:
    """A new empty database on the PostgreSQL of a port; its URL."""
    return make_database
