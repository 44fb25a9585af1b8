"""Two real engine processes: one computes prompts for the other. Whatever happens, answers are those of one engine.

The socket between them is this test's, which passes on what comes, or does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

import kvarn
from conditions import until
from kvarn.config.disaggregation import DisaggregationConfig
from kvarn.config.engine import EngineConfig
from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.config.model import ModelConfig
from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.engines import prefill_spec
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from profiles import effort

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEMO = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
PROMPT_TOKENS = 600
WHOLE = PROMPT_TOKENS // 16 * 16
"""Tokens of its full blocks."""
WAIT_S = 120.0


class Wire:
    """Listens where the first engine looks for the second, and passes on what comes as `change` makes it.

    `change` is given what the second engine sends, in pieces, with the number of bytes that came before; None cuts the
    connection.
    """

    def __init__(self, path: str, to: str) -> None:
        self.change: Callable[[bytes, int], bytes | None] = lambda piece, before: piece
        self.passed = 0
        """Bytes from the second engine on the present connection."""
        self.connections = 0
        self._to = to
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._accept_on, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept_on(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                first, _ = self._listener.accept()
                second = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    second.connect(self._to)
                except OSError:
                    first.close()
                    continue
                self.connections += 1
                self.passed = 0
                for source, target, changes in ((first, second, False), (second, first, True)):
                    threading.Thread(target=self._pass_on, args=(source, target, changes), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, changes: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(4096):
                if changes:
                    before, self.passed = self.passed, self.passed + len(piece)
                    changed = self.change(piece, before)
                    if changed is None:
                        break
                    piece = changed
                target.sendall(piece)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Pair:
    """The two processes, with a wire between them, and one more that computes all by itself."""

    def __init__(self, folder: Path, tensor_parallel_size: int = 1) -> None:
        self.wire = Wire(str(folder / "wire"), str(folder / "prefill"))
        model = ModelConfig(
            name="demo",
            path="kvarn-demo",
            threads=1,
            kv_cache_gib=0.1,
            max_context_length=1024,
            engine=EngineConfig(max_num_seqs=8, token_budget=128),
            kv_tiers=KVTiersConfig(host_gib=0.1),
            disaggregation=DisaggregationConfig(mode="always", min_tokens=64),
            tensor_parallel_size=tensor_parallel_size,
            tensor_parallel_invariant=True,
        )
        spec = ReplicaSpec(model=model.model_dump_json(), directory=str(DEMO), heartbeat_interval_s=0.2)
        second = prefill_spec(spec, model, str(folder / "prefill"))
        first = msgspec.structs.replace(spec, role="decode", prefill_socket=str(folder / "wire"))
        changes = {"kv_tiers": None, "disaggregation": None, "tensor_parallel_size": 1}
        alone = msgspec.structs.replace(spec, model=model.model_copy(update=changes).model_dump_json())
        config = ReplicaConfig(restart_backoff_s=0.1, heartbeat_timeout_s=60.0)
        self.supervisors = {
            name: EngineSupervisor(each, config)
            for name, each in (("first", first), ("second", second), ("alone", alone))
        }
        self.clients = {name: ZmqReplicaClient(name) for name in self.supervisors}
        for name, supervisor in self.supervisors.items():
            supervisor.subscribe(self.clients[name].update)
            supervisor.launch()
        self._number = 0

    async def start(self) -> None:
        for supervisor in self.supervisors.values():
            supervisor.start()
        for supervisor in self.supervisors.values():
            await asyncio.wait_for(supervisor.wait_until_ready(), WAIT_S)
        await self.until_used()

    async def stop(self) -> None:
        await asyncio.gather(*[supervisor.stop() for supervisor in self.supervisors.values()])
        self.wire.close()

    async def ask(self, name: str, request: Submit) -> tuple[list[int], int]:
        """The answer's tokens, and how many of the prompt's were not computed there."""
        tokens: list[int] = []
        cached = 0
        async for delta in self.clients[name].generate(request):
            tokens += delta.token_ids
            cached += delta.cached_tokens
        return tokens, cached

    def request(self) -> Submit:
        """One whose prompt nobody has seen."""
        self._number += 1
        rng = random.Random(self._number)
        prompt = [rng.randrange(5, 3000) for _ in range(PROMPT_TOKENS)]
        sampling = SamplingParams(seed=self._number, max_tokens=12, temperature=1.0)
        return Submit(request_id=f"r{self._number}", prompt_token_ids=prompt, sampling=sampling, tenant="acme")

    async def check(self) -> int:
        """Ask both ways; answers must come, and be equal. Returns the prompt tokens that were not computed again."""
        request = self.request()
        expected, _ = await asyncio.wait_for(self.ask("alone", request), WAIT_S)
        found, cached = await asyncio.wait_for(self.ask("first", request), WAIT_S)
        assert found == expected
        return cached

    async def until_used(self) -> None:
        """Ask until the second engine has computed a prompt: it is connected some time after it was started or lost."""
        for _ in range(100):
            if await self.check() == WHOLE:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the second engine is not used")

    def dropped(self) -> dict[str, int]:
        stats = self.clients["first"].stats.kv_tiers
        return stats["prefill"].dropped_total if stats else {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Pair, None]:
    started = Pair(tmp_path_factory.mktemp("pair"))
    try:
        await started.start()
        yield started
    finally:
        await started.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def pair(running: Pair) -> AsyncGenerator[Pair, None]:
    """The wire passes everything on, and the second engine is used; so it is again some time after each test."""
    yield running
    running.wire.change = lambda piece, before: piece
    await running.until_used()


async def test_prompts_come_from_the_second_engine_and_answers_are_those_of_one(pair: Pair) -> None:
    used = 0
    for _ in range(10):  # on a busy machine it is now and then sooner to compute a prompt than to wait for it
        used += await pair.check() == WHOLE
        if used == 3:
            break
    assert used == 3, "of the first ten"
    await until(lambda: pair.clients["first"].stats.lookups.remote_prefills_total >= 3, "them to be counted")


@pytest.mark.thorough
async def test_each_engine_may_be_several_processes(tmp_path: Path) -> None:
    pair = Pair(tmp_path, tensor_parallel_size=2)
    try:
        await pair.start()
        for _ in range(2):
            await pair.until_used()
    finally:
        await pair.stop()


async def test_requests_at_once_some_with_the_same_prompt_get_their_own_answers(pair: Pair) -> None:
    requests = [pair.request() for _ in range(4)]
    requests += [msgspec.structs.replace(each, request_id=f"{each.request_id}b") for each in requests[:2]]
    expected = await asyncio.gather(*[pair.ask("alone", each) for each in requests])
    found = await asyncio.gather(*[pair.ask("first", each) for each in requests])
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]


async def test_an_aborted_request_is_aborted_in_the_second_engine_too(pair: Pair) -> None:
    passed = pair.wire.passed
    asking = asyncio.create_task(pair.ask("first", pair.request()))
    await until(lambda: pair.wire.passed > passed + 40_000, "its first blocks")
    asking.cancel()
    await asyncio.wait({asking})
    assert await pair.check() == WHOLE


@pytest.mark.parametrize("place", [5_000, 50_000, 200_000])
async def test_a_flipped_bit_is_noticed_and_the_rest_is_computed_here(pair: Pair, place: int) -> None:
    wire = pair.wire
    start, dropped, connections = wire.passed, sum(pair.dropped().values()), wire.connections

    def flip(piece: bytes, before: int) -> bytes:
        where = start + place - before
        return piece[:where] + bytes([piece[where] ^ 4]) + piece[where + 1 :] if 0 <= where < len(piece) else piece

    wire.change = flip
    assert await pair.check() < WHOLE
    await until(
        lambda: sum(pair.dropped().values()) > dropped or wire.connections > connections, "the bit to be noticed"
    )


async def test_flipped_bits_of_frames_change_no_answer(pair: Pair) -> None:
    """Lengths, numbers of jobs and blocks, headers: a few of all bits of a frame's beginning."""
    wire = pair.wire
    for place in random.Random(1).sample(range(300), effort(6, 100)):
        start = wire.passed

        def flip(piece: bytes, before: int, start: int = start, place: int = place) -> bytes:
            where = start + place - before
            return piece[:where] + bytes([piece[where] ^ 16]) + piece[where + 1 :] if 0 <= where < len(piece) else piece

        wire.change = flip
        await pair.check()


@pytest.mark.parametrize("place", [10, 60_000])
async def test_a_connection_that_ends_half_way_is_made_again(pair: Pair, place: int) -> None:
    wire = pair.wire
    start, connections = wire.passed, wire.connections
    wire.change = lambda piece, before: piece if before < start + place else None
    assert await pair.check() < WHOLE
    wire.change = lambda piece, before: piece
    await until(lambda: wire.connections > connections, "another connection")


async def test_what_an_earlier_process_sent_is_not_used(pair: Pair) -> None:
    seen = bytearray()

    def listen(piece: bytes, before: int) -> bytes:
        seen.extend(piece)
        return piece

    pair.wire.change = listen
    await pair.check()
    place = seen.index(b"generation") + len(b"generation")
    assert seen[place : place + 2] == b"\xc4\x10", "16 bytes follow"
    generation = bytes(seen[place + 2 : place + 18])
    pair.wire.change = lambda piece, before: piece if b"Welcome" in piece else piece.replace(generation, bytes(16))
    assert await pair.check() < WHOLE
    await until(lambda: "stale" in pair.dropped(), "stale frames to be counted")


async def test_a_killed_second_engine_loses_no_request_and_is_used_again(pair: Pair) -> None:
    second, request = pair.supervisors["second"], pair.request()
    expected, _ = await pair.ask("alone", request)
    asking = asyncio.create_task(pair.ask("first", request))
    await asyncio.sleep(0.05)
    pid = second.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    found, _ = await asyncio.wait_for(asking, WAIT_S)
    assert found == expected
    await until(lambda: second.pid not in (None, pid), "another process")
    await asyncio.wait_for(second.wait_until_ready(), WAIT_S)


async def test_a_second_engine_that_falls_silent_is_given_up(pair: Pair) -> None:
    pid = pair.supervisors["second"].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        assert await pair.check() == 0
    finally:
        os.kill(pid, signal.SIGCONT)
