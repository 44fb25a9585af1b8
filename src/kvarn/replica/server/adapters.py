"""The adapters of one engine by name: loaded in a thread, replaced, unloaded, loaded again after a restart.

The engine knows an adapter by the digest of its weights and settings. This module maps names to digests: a request gets
the current digest of its adapter's name when it arrives, and keeps it when the name is loaded anew or unloaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.adapters import LoraConfig
from kvarn.engine.core import EngineCore
from kvarn.kernels.device.memory import GIB
from kvarn.models.adapters import LoadedAdapter
from kvarn.wire.messages import AdapterChanged, AdapterInfo, Adapters, Join, LoadAdapter, Submit, UnloadAdapter
from kvarn.worker.adapters import AdapterPool

_log = logging.getLogger(__name__)

LoadFunction = Callable[[Path], LoadedAdapter]


@dataclass(slots=True)
class _Load:
    info: AdapterInfo
    future: Future[LoadedAdapter]
    request_id: str = ""
    """Request to answer; empty: it is loaded again after a restart."""
    waiting: list[tuple[Submit, float]] = field(default_factory=list)
    """Requests that came before it was there, and when: seconds of the engine's clock."""


class AdapterHost:
    """Loads, replaces and unloads the adapters of one engine. Used by the engine's thread.

    Args:
        load: Reads a checkpoint and checks it against the model; runs in a thread.
        pool: The host's copies.
        engine: Told which versions no request will name any more.
        num_blocks: Blocks of the KV cache: an adapter that does not fit is refused.
        max_bytes: Host memory for all adapters together.
        config: Limits of what may be loaded.
    """

    def __init__(
        self,
        load: LoadFunction,
        pool: AdapterPool,
        engine: EngineCore,
        *,
        num_blocks: int,
        max_bytes: int,
        config: LoraConfig,
    ) -> None:
        self._load = load
        self._pool = pool
        self._engine = engine
        self._num_blocks = num_blocks
        self._max_bytes = max_bytes
        self._config = config
        self._by_name: dict[str, AdapterInfo] = {}
        self._loading: dict[str, _Load] = {}
        self._revision = 0
        self._names: dict[str, str] = {}
        """The latest name of each digest, for metrics."""
        self._answers: list[AdapterChanged] = []
        self._told: Adapters | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-adapters")

    # What is there ---------------------------------------------------------------------------------------------------

    def listing(self) -> Adapters:
        """All that requests may name, those that are loaded again after a restart among them."""
        again = [load.info for name, load in self._loading.items() if not load.request_id and name not in self._by_name]
        return Adapters(revision=self._revision, adapters=[*self._by_name.values(), *again])

    def names_of(self, digests: Iterable[str]) -> list[str]:
        return sorted({self._names.get(digest, digest) for digest in digests})

    @property
    def is_busy(self) -> bool:
        return bool(self._loading or self._answers or self._told)

    def resolve(self, request: Submit, now: float) -> Submit | str | None:
        """Returns the request with the current digest of its adapter; the reason, where there is no such adapter; None
        where it waits for a load in progress, see `poll`."""
        found = self._by_name.get(request.adapter)
        if found is not None:
            return msgspec.structs.replace(request, adapter=found.digest)
        load = self._loading.get(request.adapter)
        if load is not None:
            load.waiting.append((request, now))
            return None
        return f"adapter {request.adapter[:200]!r} is not loaded: it was unloaded, or could not be loaded again"

    def abort(self, request_id: str) -> None:
        for load in self._loading.values():
            load.waiting = [each for each in load.waiting if each[0].request_id != request_id]

    # Changes ---------------------------------------------------------------------------------------------------------

    def load_now(self, adapters: Iterable[AdapterInfo]) -> None:
        """Load those of the configuration before the engine serves. Raises `AdapterError` for one that cannot be used,
        `AdapterRefusedError` where there is no room."""
        for info in adapters:
            self._enter(info, self._load(Path(info.path)))

    def load_beside(self, adapters: Iterable[AdapterInfo]) -> None:
        """Load those of the deployment beside what runs; requests for them wait. One that cannot be loaded, or is not
        what it was, is not there, as the log says."""
        for info in adapters:
            self._begin(info)

    def change(self, message: LoadAdapter | UnloadAdapter) -> None:
        if isinstance(message, UnloadAdapter):
            self._unload(message)
            return
        name = message.adapter.name
        problem, code = "", "invalid"
        if not self._config.enabled:
            problem = "this server loads no adapters while it runs: start it with --enable-lora"
        elif name in self._loading:
            problem, code = f"The lora adapter {name!r} is being loaded: wait for that.", "exists"
        elif name in self._by_name and not message.in_place:
            problem, code = (
                (
                    f"The lora adapter {name!r} has already been loaded. If you want to load the adapter in place, set "
                    "'load_inplace' to True."
                ),
                "exists",
            )
        if problem:
            self._answers.append(AdapterChanged(request_id=message.request_id, problem=problem, code=code))
        else:
            self._begin(message.adapter, message.request_id)

    def join(self, message: Join) -> Adapters | None:
        """Message for a gateway process that joins; where it knows of a later list, from before a restart of the
        engine, that is brought back, and None: all hear of it."""
        if message.revision <= self._revision:
            return self.listing()
        self._revision = message.revision
        wanted = {info.name: info for info in message.adapters}
        for name in [name for name in self._by_name if name not in wanted]:
            self._retire(self._by_name.pop(name))
        for name, info in wanted.items():
            loading = self._loading.get(name)
            if loading is not None and (loading.request_id or loading.info.digest == info.digest):
                continue
            if name not in self._by_name or self._by_name[name].digest != info.digest:
                self._begin(info)
                if loading is not None:
                    self._loading[name].waiting = loading.waiting
        self._told = self.listing()
        return None

    def poll(self) -> tuple[list[AdapterChanged], list[tuple[Submit, float]], Adapters | None]:
        """Answers to requests for changes, requests that need not wait any more with when they came, and the new list
        after a change."""
        ready: list[tuple[Submit, float]] = []
        for name, load in list(self._loading.items()):
            if load.future.done():
                del self._loading[name]
                self._finish(load)
                ready += load.waiting
        answers, self._answers = self._answers, []
        told, self._told = self._told, None
        return answers, ready, told

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self, info: AdapterInfo, request_id: str = "") -> None:
        self._loading[info.name] = _Load(info, self._thread.submit(self._load, Path(info.path)), request_id)

    def _finish(self, load: _Load) -> None:
        problem = ""
        try:
            loaded = load.future.result()
            if load.info.digest and loaded.digest != load.info.digest:
                raise AdapterRefusedError(f"{load.info.path} has changed since it was loaded: load it again")
            self._enter(load.info, loaded)
        except Exception as error:
            known = type(error).__module__.startswith("kvarn.")
            _log.log(logging.WARNING, "an adapter was not loaded: %s", error, exc_info=not known)
            problem = str(error) if known else f"{type(error).__name__}: {error}"
        if load.request_id:
            code = "invalid" if problem else ""
            self._answers.append(AdapterChanged(request_id=load.request_id, problem=problem, code=code))
        if not problem:
            _log.info("adapter loaded", extra={"adapter": load.info.name, "path": load.info.path})
        if load.request_id and not problem:
            self._changed()
        elif not load.request_id:  # back after a restart, or lost: either is news
            self._told = self.listing()

    def _enter(self, info: AdapterInfo, loaded: LoadedAdapter) -> None:
        is_new = not self._pool.has(loaded.digest)
        if is_new:
            self._check_room(info, loaded)
            self._pool.add(loaded.digest, loaded.packed)
        self._engine.keep_adapter(loaded.digest)
        before = self._by_name.get(info.name)
        self._by_name[info.name] = msgspec.structs.replace(
            info,
            digest=loaded.digest,
            rank=loaded.rank,
            nbytes=loaded.packed.nbytes,
            kv_blocks=self._pool.num_blocks(loaded.digest),
            loaded_at=int(SYSTEM_CLOCK.time()),
        )
        self._names[loaded.digest] = info.name
        if before is not None:
            self._retire(before)

    def _check_room(self, info: AdapterInfo, loaded: LoadedAdapter) -> None:
        limit = self._config.max_cpu_loras
        if limit is not None and info.name not in self._by_name and len(self._by_name) >= limit:
            raise AdapterRefusedError(f"{limit} adapters are loaded, as many as may be (max_cpu_loras): unload one")
        nbytes = self._pool.nbytes + loaded.packed.nbytes
        if nbytes > self._max_bytes:
            raise AdapterRefusedError(
                f"all adapters together would take {nbytes / GIB:.2f} GiB of host memory, more than "
                f"{self._max_bytes / GIB:.2f}: unload one, or raise lora.host_memory_gib"
            )
        blocks = self._pool.blocks_for(loaded.packed)
        if blocks >= self._num_blocks:
            raise AdapterRefusedError(
                f"the adapter takes {blocks} blocks of the KV cache, which has {self._num_blocks}: raise kv_cache_gib"
            )

    def _unload(self, message: UnloadAdapter) -> None:
        found = self._by_name.pop(message.name, None)
        if found is None:
            problem = f"The lora adapter {message.name[:200]!r} cannot be found."
            self._answers.append(AdapterChanged(request_id=message.request_id, problem=problem, code="missing"))
            return
        self._retire(found)
        self._changed()
        self._answers.append(AdapterChanged(request_id=message.request_id))

    def _retire(self, version: AdapterInfo) -> None:
        if all(info.digest != version.digest for info in self._by_name.values()):
            self._engine.retire_adapter(version.digest)

    def _changed(self) -> None:
        self._revision += 1
        self._told = self.listing()


class AdapterRefusedError(Exception):
    """An adapter that is sound cannot be loaded here; the message says why."""
