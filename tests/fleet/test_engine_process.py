"""The engine process and its client together: the real process, real sockets, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import msgspec
import pytest

from conditions import collect, lives, until
from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.client.protocol import ReplicaLostError, ReplicaState, RequestRefusedError
from kvarn.wire.kv_map import CACHED
from kvarn.wire.messages import FinishReason, RefusalReason
from kvarn.wire.questions import AskKVMap, AskKVPath, AskLiveSteps, AskTurnSteps
from profiles import thorough

IMPATIENT = {"heartbeat_timeout_s": 1.0}
"""Of tests in which an engine does nothing for a while; others allow for a busy machine."""


async def first_delta(stream) -> None:
    await stream.__anext__()


async def test_tokens_come_in_order_and_the_last_delta_says_why_it_ended(make_replica, submit):
    replica = make_replica()
    card = await replica.wait_until_ready()
    deltas = [delta async for delta in replica.generate(submit(prompt=[5, 6, 7], max_tokens=4))]
    assert [token for delta in deltas for token in delta.token_ids] == [8, 9, 10, 11]
    assert [delta.finish_reason for delta in deltas][-1] is FinishReason.LENGTH
    assert {"interpreter", "import", "read the script", "total"} <= set(card.start_s)
    assert replica.stats.finished_total == 1


async def test_two_hundred_requests_at_once_all_finish_and_the_engine_tells_their_steps(make_replica, submit):
    replica = make_replica()
    await replica.wait_until_ready()
    requests = [submit(f"r{i}", prompt=[100 * i], max_tokens=20) for i in range(200)]
    answers = await asyncio.gather(*[collect(replica, request) for request in requests])
    assert answers == [list(range(100 * i + 1, 100 * i + 21)) for i in range(200)]
    await until(lambda: replica.stats.running == 0)
    assert replica.stats.kv_blocks_free == replica.stats.kv_blocks_total

    told = await replica.ask(AskTurnSteps("r7"))
    own = [row.output_tokens for step in told.steps for row in step.rows if row.turn == 0]
    assert (told.turns[0].request_id, sum(own), told.complete) == ("r7", 20, True)
    assert await replica.ask(AskTurnSteps("another")) is None
    live, blocks = await replica.ask(AskLiveSteps(0)), await replica.ask(AskKVMap())
    assert sum(row.output_tokens for step in live.steps for row in step.rows) == 200 * 20
    assert (live.running, live.queue, live.free_blocks) == ([], [], live.kv_blocks)
    assert len(blocks.states) == len(blocks.owners) == live.kv_blocks
    held = [block for block, state in enumerate(blocks.states) if state & CACHED]
    path = await replica.ask(AskKVPath(held[0]))
    assert (path.block, path.path[0].holders, path.request_ids) == (held[0], 0, [])
    assert await replica.ask(AskKVPath(live.kv_blocks)) is None


async def test_requests_are_refused_while_the_engine_starts(make_replica, submit):
    replica = make_replica(load_s=5.0, config=IMPATIENT)
    assert replica.state is ReplicaState.STARTING
    with pytest.raises(ReplicaLostError, match="not ready: starting"):
        await collect(replica, submit())
    assert await replica.ask(AskLiveSteps(0)) is None


async def test_kill_in_mid_stream_fails_the_request_at_once_and_the_engine_comes_back(make_replica, submit):
    replica = make_replica(step_s=0.02, config={"heartbeat_timeout_s": 60.0})
    await replica.wait_until_ready()
    stream = replica.generate(submit(max_tokens=10_000))
    await first_delta(stream)
    first_pid = replica.pid
    os.kill(first_pid, signal.SIGKILL)
    async with asyncio.timeout(20):  # far less than the heartbeat's 60 s: it was the exit that was noticed
        with pytest.raises(ReplicaLostError, match="SIGKILL"):
            async for _ in stream:
                pass
    assert replica.state is ReplicaState.DOWN
    await until(lambda: replica.state is ReplicaState.READY)
    assert replica.pid != first_pid
    assert await collect(replica, submit(prompt=[1], max_tokens=3)) == [2, 3, 4]


async def test_a_silent_engine_is_killed_and_restarted(make_replica, submit):
    replica = make_replica(step_s=0.02, config=IMPATIENT)
    await replica.wait_until_ready()
    stream = replica.generate(submit(max_tokens=10_000))
    await first_delta(stream)
    first_pid = replica.pid
    os.kill(first_pid, signal.SIGSTOP)
    with pytest.raises(ReplicaLostError, match="silent for 1 s"):
        async for _ in stream:
            pass
    await until(lambda: replica.state is ReplicaState.READY)
    assert replica.pid != first_pid
    with pytest.raises(ProcessLookupError):
        os.kill(first_pid, 0)


async def test_a_long_step_is_no_silence(make_replica, submit):
    replica = make_replica(step_s=1.5, config=IMPATIENT)
    await replica.wait_until_ready()
    assert await collect(replica, submit(max_tokens=1)) == [2]
    assert replica.supervisor.failure is None


@pytest.mark.thorough
async def test_a_step_without_end_is_noticed_though_the_heart_beats(make_replica, submit):
    replica = make_replica(step_s=600.0, config={"step_timeout_s": 0.5})
    await replica.wait_until_ready()
    first_pid = replica.pid
    with pytest.raises(ReplicaLostError, match=r"in one step for more than 0\.5 s"):
        await collect(replica, submit(max_tokens=1))
    await until(lambda: replica.state is ReplicaState.READY)
    assert replica.pid != first_pid


async def test_the_gauges_tell_of_an_abort_that_leaves_the_engine_idle(make_replica, submit):
    replica = make_replica(step_s=0.01)
    await replica.wait_until_ready()
    stream = replica.generate(submit(max_tokens=60_000))
    await first_delta(stream)
    await stream.aclose()
    await until(lambda: replica.stats.running == 0 and replica.stats.aborts_total == 1)
    assert replica.stats.kv_blocks_free == replica.stats.kv_blocks_total


async def test_a_stream_that_was_never_read_leaves_nothing_behind(make_replica, submit):
    replica = make_replica()
    await replica.wait_until_ready()
    stream = replica.generate(submit("same-id", max_tokens=60_000))
    await stream.aclose()
    assert await collect(replica, submit("same-id", max_tokens=2)) == [2, 3]
    assert replica.stats.aborts_total == 0


async def test_a_slow_consumer_gets_every_token_merged_into_parts_of_a_bounded_size(make_replica, submit):
    replica = make_replica()
    await replica.wait_until_ready()
    stream = replica.generate(submit(prompt=[1], max_tokens=500))
    deltas = [await stream.__anext__()]
    await until(lambda: replica.stats.finished_total == 1)
    deltas += [delta async for delta in stream]
    assert [token for delta in deltas for token in delta.token_ids] == list(range(2, 502))
    assert max(len(delta.token_ids) for delta in deltas) == 64 and len(deltas) <= 10


async def test_what_there_is_no_memory_for_is_aborted_though_its_consumer_is_away(make_replica, submit):
    def report_pending(size: int) -> None:
        reported.append(size)
        if size > 20_000:
            raise MemoryError("too much waits")

    reported: list[int] = []
    replica = make_replica(step_s=0.0001)
    await replica.wait_until_ready()
    stream = replica.generate(submit(max_tokens=60_000), report_pending)
    await first_delta(stream)
    await until(lambda: replica.stats.aborts_total == 1 and replica.stats.running == 0)
    assert 20_000 < max(reported) < 30_000 and reported[-1] == 0
    with pytest.raises(MemoryError, match="too much waits"):
        await collect_rest(stream)


async def collect_rest(stream) -> None:
    async for _ in stream:
        pass


async def test_what_the_engine_refuses_is_raised_with_its_reason(make_replica, submit):
    replica = make_replica()
    await replica.wait_until_ready()
    cases = {
        RefusalReason.INVALID: submit("a", prompt=[]),
        RefusalReason.PROMPT_TOO_LONG: submit("b", prompt=[1] * 70_000),
    }
    for reason, request in cases.items():
        with pytest.raises(RequestRefusedError) as refusal:
            await collect(replica, request)
        assert refusal.value.reason is reason


@pytest.mark.parametrize(
    "request_changes", [{"prompt": [1 << 40]}, thorough({"prompt": [-1]}), thorough({"allowed_token_ids": [-5]})]
)
async def test_impossible_numbers_are_refused_and_harm_no_other_request(make_replica, submit, request_changes):
    replica = make_replica(step_s=0.01)
    await replica.wait_until_ready()
    other = asyncio.create_task(collect(replica, submit("other", prompt=[1], max_tokens=30)))
    with pytest.raises(RequestRefusedError) as refusal:
        await collect(replica, submit("bad", **request_changes))
    assert refusal.value.reason is RefusalReason.INVALID
    assert await other == list(range(2, 32))


async def test_messages_that_cannot_be_read_are_refused_or_skipped(make_replica, submit, send_raw):
    replica = make_replica()
    await replica.wait_until_ready()
    messages = [{"type": "Submit", "request_id": 7}, {"type": "Unknown"}]
    send_raw(replica, b"\xff\x00 no msgpack", *map(msgspec.msgpack.encode, messages))
    stream = asyncio.create_task(collect(replica, msgspec.structs.replace(submit("bad"), prompt_token_ids=["text"])))
    with pytest.raises(RequestRefusedError, match="cannot read this request") as refusal:
        await stream
    assert refusal.value.reason is RefusalReason.INVALID
    assert await collect(replica, submit("good", max_tokens=2)) == [2, 3]


async def test_a_terminated_engine_finishes_what_runs_before_it_is_replaced(make_replica, submit):
    replica = make_replica(step_s=0.01)
    await replica.wait_until_ready()
    first_pid = replica.pid
    running = asyncio.create_task(collect(replica, submit(prompt=[1], max_tokens=60)))
    await until(lambda: replica.stats.running == 1)
    os.kill(first_pid, signal.SIGTERM)
    await until(lambda: replica.state is not ReplicaState.READY, "it is sent no more requests")
    assert await running == list(range(2, 62))
    await until(lambda: replica.state is ReplicaState.READY and replica.pid != first_pid)


@pytest.mark.thorough
async def test_a_failing_device_is_reported_and_the_engine_restarted(make_replica, submit):
    replica = make_replica(fail_at_token=13)
    await replica.wait_until_ready()
    with pytest.raises(ReplicaLostError, match="the device is on fire"):
        await collect(replica, submit(prompt=[10], max_tokens=50))
    await until(lambda: replica.state is ReplicaState.READY)
    assert await collect(replica, submit(prompt=[20], max_tokens=2)) == [21, 22]


async def test_a_start_that_fails_shows_its_reason_and_is_tried_again(make_replica, submit):
    replica = make_replica(fail_to_load="no weights here")
    with pytest.raises(ReplicaLostError, match="no weights here"):
        await replica.wait_until_ready()
    assert replica.state is ReplicaState.DOWN
    assert "no weights here" in replica.progress[0]
    await until(lambda: replica.state is ReplicaState.STARTING)
    await until(lambda: replica.state is ReplicaState.DOWN)


@pytest.mark.thorough
async def test_an_engine_that_fails_before_the_gateway_listens_still_says_why(make_unstarted):
    replica = make_unstarted(fail_to_load="no weights here")
    process = replica.launch()
    await until(lambda: not lives(process.popen.pid), "its end")
    try:
        replica.start()
        with pytest.raises(ReplicaLostError, match="no weights here"):
            await replica.wait_until_ready()
    finally:
        await replica.stop()


async def test_a_start_that_takes_too_long_is_given_up(make_replica):
    replica = make_replica(load_s=60.0, config={"start_timeout_s": 0.5})
    with pytest.raises(ReplicaLostError, match=r"not ready after 0\.5 s"):
        await replica.wait_until_ready()


async def test_an_engine_that_is_stopped_while_it_starts_is_noticed_and_another_started_at_once(make_replica):
    replica = make_replica(load_s=600.0, config=IMPATIENT)
    await until(lambda: replica.progress[0] == "read the script")
    stopped = replica.pid
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(ReplicaLostError, match="stood still for 1 s while it started"):
        await replica.wait_until_ready()
    await until(lambda: replica.state is ReplicaState.STARTING and replica.supervisor.pid not in (None, stopped))


async def test_an_engine_sees_the_gpus_of_its_place_and_no_others(make_spec):
    spec = msgspec.structs.replace(make_spec(architecture_from="CUDA_VISIBLE_DEVICES"), gpus=("GPU-b", "GPU-a"))
    supervisor = EngineSupervisor(spec, ReplicaConfig())
    supervisor.start()
    try:
        assert (await supervisor.wait_until_ready()).architecture == "GPU-b,GPU-a"
    finally:
        await supervisor.stop()


async def test_embeddings_of_many_requests_share_the_engine(make_replica, submit):
    replica = make_replica(kind="embed", engine={"token_budget": 8})
    await replica.wait_until_ready()
    asked = {f"e{i}": [[1] * (1 + (i + j) % 7) for j in range(5)] for i in range(20)}
    answers = await asyncio.gather(*[replica.embed(key, inputs) for key, inputs in asked.items()])
    assert answers == [[bytes([len(tokens)]) for tokens in inputs] for inputs in asked.values()]
    with pytest.raises(RequestRefusedError, match="does not generate"):
        await collect(replica, submit())


async def test_a_cancelled_embedding_is_aborted(make_replica):
    replica = make_replica(kind="embed", step_s=0.05, engine={"token_budget": 1})
    await replica.wait_until_ready()
    task = asyncio.create_task(replica.embed("long", [[1]] * 1000))
    await until(lambda: replica.stats.step >= 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await replica.embed("short", [[1]]) == [b"\x01"]
    await until(lambda: replica.stats.aborts_total == 1)  # the gauges may follow the answer


async def test_stop_leaves_no_process_and_no_task(make_replica, submit):
    replica = make_replica(step_s=0.01)
    await replica.wait_until_ready()
    pid = replica.pid
    running = asyncio.create_task(collect(replica, submit(max_tokens=60_000)))
    await until(lambda: replica.stats.running == 1)
    await replica.stop()
    with pytest.raises(ReplicaLostError):
        await running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in others if not task.done() and "_engines" not in str(task)]


PARENT = """
import asyncio, msgspec, sys
from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.spec import ReplicaSpec

async def main():
    supervisor = EngineSupervisor(msgspec.json.decode(sys.argv[1], type=ReplicaSpec), ReplicaConfig())
    supervisor.start()
    await supervisor.wait_until_ready()
    print(supervisor.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("state", [thorough("running"), "stopped"])
async def test_the_engine_dies_with_its_parent(make_spec, state):
    command = [sys.executable, "-c", PARENT, msgspec.json.encode(make_spec()).decode()]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220  it returns at once
    engine = int(parent.stdout.readline())
    if state == "stopped":
        os.kill(engine, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    await until(lambda: not lives(engine), "the engine to die", within_s=60)
