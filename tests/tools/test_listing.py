"""Lists of servers' tools that are remembered."""

from __future__ import annotations

from kvarn.store.owner import Owner
from kvarn.tools import listing
from kvarn.tools.listing import ListCache
from kvarn.tools.server import ToolServer

MINE = Owner("org-a", "proj-a")


class Lists:
    """A cache whose reads are counted, on a clock that stands still."""

    def __init__(self, chars: int = 1) -> None:
        self.now = 0.0
        self.reads: list[str] = []
        self.cache: ListCache[str] = ListCache(self._read, lambda _: chars, lambda: self.now)

    async def _read(self, server: ToolServer) -> str:
        self.reads.append(server.label)
        return server.label


async def test_a_list_is_read_again_after_five_minutes_and_when_it_is_asked_for() -> None:
    lists, server = Lists(), ToolServer("a", url="https://a/")
    for now in (0.0, 299.0):
        lists.now = now
        assert await lists.cache.get(MINE, server) == "a"
    assert len(lists.reads) == 1
    await lists.cache.get(MINE, server, fresh=True)
    lists.now += 301
    await lists.cache.get(MINE, server)
    assert len(lists.reads) == 3


async def test_each_project_credential_and_version_has_lists_of_its_own() -> None:
    lists = Lists()
    servers = [ToolServer("a", url="https://a/", headers=headers) for headers in ({}, {"x": "1"}, {"x": "2"})]
    servers += [ToolServer("a", url="https://b/"), ToolServer("a", url="https://a/", id="1", version=1)]
    servers += [ToolServer("a", url="https://a/", id="1", version=2)]
    for server in (*servers, *servers):
        await lists.cache.get(MINE, server)
    await lists.cache.get(Owner("org-b", "proj-a"), servers[0])
    assert len(lists.reads) == len(servers) + 1


async def test_what_is_remembered_is_bounded_in_number_and_size() -> None:
    lists = Lists()
    for number in range(listing._MAX_LISTS + 1):
        await lists.cache.get(MINE, ToolServer(str(number), url=f"https://{number}/"))
    await lists.cache.get(MINE, ToolServer("0", url="https://0/"))
    assert lists.reads.count("0") == 2, "the oldest was forgotten"
    large = Lists(chars=listing._MAX_CHARS // 2)
    for number in (0, 1, 2, 0):
        await large.cache.get(MINE, ToolServer(str(number), url=f"https://{number}/"))
    assert large.reads == ["0", "1", "2", "0"]
    assert large.cache._chars <= listing._MAX_CHARS
