"""Calls between two processes: answers by type, and an end that every caller hears of."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pytest

from kvarn.fleet.channel import Channel, ChannelClosedError


class Double(msgspec.Struct, array_like=True):
    number: int


class Fail(msgspec.Struct, array_like=True):
    pass


class Other(msgspec.Struct):
    field: str


async def _pair() -> tuple[Channel, Channel]:
    own, other = socket.socketpair()

    def fail(_: Fail) -> object:
        raise ValueError("no")

    async def later(double: Double) -> int:
        return 2 * double.number

    handlers = {Double: later, Fail: fail, Other: lambda _: object()}
    return await Channel.open(own, {}), await Channel.open(other, handlers)


async def test_calls_are_answered_and_failures_reach_their_caller_alone():
    caller, _ = await _pair()
    assert await asyncio.gather(*(caller.call(Double(each), int) for each in range(3))) == [0, 2, 4]
    for message, answer in ((Fail(), int), (Double(1), Other), (Other("no answer can be encoded"), int)):
        with pytest.raises(ChannelClosedError):
            await caller.call(message, answer)
    assert await caller.call(Double(7), int) == 14


async def test_what_is_no_message_closes_the_channel_and_ends_its_calls():
    own, other = socket.socketpair()
    channel = await Channel.open(own, {})
    call = channel.call(Double(1), int)
    other.sendall((3).to_bytes(4, "little") + b"\xc1\xc1\xc1")
    with pytest.raises(ChannelClosedError):
        await call
    assert channel.closed.is_set()
    with pytest.raises(ChannelClosedError):
        await channel.call(Double(1), int)
