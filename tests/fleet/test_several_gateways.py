"""Several gateway processes that use one engine: each is answered what it asked, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal

import msgspec
import pytest

from conditions import collect, until
from kvarn.replica.client.protocol import ReplicaLostError, ReplicaState, RequestRefusedError
from kvarn.wire.messages import Abort, Join, RefusalReason


async def test_each_process_is_answered_what_it_asked(make_replica, submit, attach):
    main = make_replica(step_s=0.001)
    await main.wait_until_ready()
    clients = [main, attach(main, 1), attach(main, 2)]
    requests = [
        (client, submit(f"r{number}-{index}", prompt=[1000 * index + number], max_tokens=20))
        for number in range(10)
        for index, client in enumerate(clients)
    ]
    answers = await asyncio.gather(*[collect(client, request) for client, request in requests])
    for (_, request), answer in zip(requests, answers, strict=True):
        first = request.prompt_token_ids[0] + 1
        assert answer == list(range(first, first + 20))
    await until(lambda: all(client.stats.finished_total == 30 for client in clients))  # statistics go to all


async def test_all_choices_and_refusals_reach_another_process(make_replica, submit, attach):
    main = make_replica()
    await main.wait_until_ready()
    other = attach(main, 1)
    deltas = [delta async for delta in other.generate(submit("r", n=3, max_tokens=4))]
    assert {delta.index for delta in deltas} == {0, 1, 2}
    with pytest.raises(RequestRefusedError, match="prompt_token_ids"):
        await collect(other, submit("bad", prompt=[-1]))
    unreadable = msgspec.structs.replace(submit("worse"), prompt_token_ids=["text"])
    with pytest.raises(RequestRefusedError, match="cannot read this request"):
        await collect(other, unreadable)


async def test_the_same_id_in_two_processes_harms_neither(make_replica, submit, attach, send_raw):
    main = make_replica(step_s=0.01)
    await main.wait_until_ready()
    other = attach(main, 1)
    first = asyncio.create_task(collect(main, submit("same", max_tokens=30)))
    await until(lambda: main.stats.running == 1)
    with pytest.raises(RequestRefusedError) as refusal:
        await collect(other, submit("same"))
    assert refusal.value.reason is RefusalReason.DUPLICATE_ID
    send_raw(
        main, msgspec.msgpack.encode(Abort(request_id="same", gateway=1))
    )  # of a client that left before the refusal came
    assert await first == list(range(2, 32))


async def test_a_process_that_is_gone_leaves_no_request_in_the_engine(make_replica, submit, attach, send_raw):
    main = make_replica(step_s=0.005)
    await main.wait_until_ready()
    gone, other = attach(main, 1), attach(main, 2)
    lost = asyncio.create_task(collect(gone, submit("lost", max_tokens=60_000)))
    kept = asyncio.create_task(collect(other, submit("kept", max_tokens=200)))
    await until(lambda: main.stats.running == 2)
    main.supervisor.forget_gateway(1)
    await until(lambda: main.stats.aborts_total == 1)
    # What it sent before its end may come after the engine has heard of that.
    late = [Join(gateway=1, address="ipc:///nowhere"), msgspec.structs.replace(submit("late"), gateway=1)]
    send_raw(main, *map(msgspec.msgpack.encode, late))
    assert await kept == list(range(2, 202))
    await until(lambda: main.stats.running == 0)
    assert main.stats.finished_total == 1
    lost.cancel()


@pytest.mark.thorough
async def test_a_restarted_engine_is_joined_again(make_replica, submit, attach):
    main = make_replica(step_s=0.01)
    await main.wait_until_ready()
    other = attach(main, 1)
    stream = asyncio.create_task(collect(other, submit("r", max_tokens=10_000)))
    await until(lambda: main.stats.running == 1)
    os.kill(main.pid, signal.SIGKILL)
    await until(lambda: main.state is ReplicaState.DOWN)
    other.update(main.supervisor.status)
    with pytest.raises(ReplicaLostError, match="SIGKILL"):
        await stream
    with pytest.raises(ReplicaLostError, match="not ready"):
        await collect(other, submit("r"))
    await until(lambda: main.state is ReplicaState.READY)
    other.update(main.supervisor.status)
    assert await collect(other, submit("r", max_tokens=3)) == [2, 3, 4]


async def test_an_engine_that_is_awake_again_knows_only_gateway_processes_that_have_joined_since(
    make_replica, submit, attach
):
    replica = make_replica()
    await replica.wait_until_ready()
    gone = attach(replica, 1)  # it hears nothing of the supervisor: as if it ended while the engine sleeps
    assert await collect(gone, submit(prompt=[1], max_tokens=3)) == [2, 3, 4]
    await replica.supervisor.sleep(60)
    told = gone.stats
    assert told.finished_total == 1
    replica.supervisor.subscribe(replica.update)
    replica.supervisor.activate()
    await replica.wait_until_ready()
    for number in range(5):
        assert await collect(replica, submit(f"r{number}", prompt=[1], max_tokens=3)) == [2, 3, 4]
    assert gone.stats is told
