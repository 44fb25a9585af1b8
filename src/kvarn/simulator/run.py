"""Simulate a scenario: its models that share nothing each by themselves, one after another or in parallel.

The outcome is the same however many run at once: groups are simulated apart and joined in the order of their models.
"""

from __future__ import annotations

import gc
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kvarn.clock import SYSTEM_CLOCK
from kvarn.clock.guard import virtual_time_only
from kvarn.simulator.attached import ATTACHED
from kvarn.simulator.clients import Stream
from kvarn.simulator.event_log import EventLog
from kvarn.simulator.outcome import Outcome
from kvarn.simulator.scenario import Scenario, ScenarioError, TrafficConfig, linked_models
from kvarn.simulator.simulation import Simulation
from kvarn.simulator.traffic import conversations
from kvarn.traffic.conversation import Conversation

Progress = Callable[[float], None]
"""Is told the part of the simulation that is done, from 0 to 1."""


class ProcessLostError(RuntimeError):
    """A process that played a part of the simulation was killed; nothing came of the whole."""


def simulate(
    scenario: Scenario,
    traffic: Iterable[Conversation] | None = None,
    *,
    log: Path | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
    ray_address: str | None = None,
) -> Outcome:
    """Play a scenario to its end.

    Args:
        traffic: Conversations in the order in which they begin, in place of the scenario's own; they are played in
            one simulation of all models.
        log: File that the events are written to, a line of JSON each.
        jobs: Processes at most.
        ray_address: Ray cluster whose machines run the groups in place of processes here.

    Raises:
        ScenarioError: It cannot be simulated; the message says what to do.
        SimulationError, WallClockError: A bug of the simulator.
    """
    began = SYSTEM_CLOCK.now()
    _check(scenario, traffic)
    groups = model_groups(scenario) if traffic is None else [[model.name for model in scenario.config.models]]
    try:
        with ExitStack() as stack:
            folder = None
            if log is not None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=log.parent, prefix=".simulate")))
            logs = [None if folder is None else folder / str(number) for number in range(len(groups))]
            outcomes = _run_all(scenario, traffic, groups, logs, progress, jobs, ray_address)
            if log is not None:
                with log.open("wb") as whole:
                    for part in logs:
                        assert part is not None
                        with part.open("rb") as lines:
                            shutil.copyfileobj(lines, whole)
    except OSError as error:
        raise ScenarioError(f"cannot write the log {log}: {error.strerror}") from None
    outcome = _join(scenario, outcomes)
    outcome.wall_s = SYSTEM_CLOCK.now() - began
    return outcome


def model_groups(scenario: Scenario) -> list[list[str]]:
    """Names of models that share something: engines that wait for whichever needs one (`fleet.warm_pool`), a trace
    that asks several, a route, fallbacks."""
    names = [model.name for model in scenario.config.models]
    together = scenario.config.fleet.warm_pool or any(len(_asked(scenario, each)) > 1 for each in scenario.traffic)
    if together:
        return [names]
    groups = [[name] for name in names]
    for shared in linked_models(scenario):
        joined = [group for group in groups if not shared.isdisjoint(group)]
        groups = [group for group in groups if group not in joined]
        groups.append([name for name in names if any(name in group for group in joined)])
    return sorted(groups, key=lambda group: names.index(group[0]))


def _check(scenario: Scenario, traffic: Iterable[Conversation] | None) -> None:
    if traffic is None and not scenario.traffic:
        raise ScenarioError("the scenario has no traffic: give it some under `traffic`")


def _run_all(
    scenario: Scenario,
    traffic: Iterable[Conversation] | None,
    groups: list[list[str]],
    logs: list[Path | None],
    progress: Progress | None,
    jobs: int,
    ray_address: str | None,
) -> list[Outcome]:
    if ray_address is not None:
        return _run_on_ray(scenario, groups, logs, ray_address)
    if jobs > 1 and len(groups) > 1:
        return _run_in_processes(scenario, groups, logs, progress, jobs)
    outcomes = []
    for number, (names, log) in enumerate(zip(groups, logs, strict=True)):
        tell = None if progress is None else partial(_part_of, progress, number, len(groups))
        outcomes.append(run_group(scenario, names, log, tell, traffic))
    return outcomes


def _part_of(progress: Progress, number: int, parts: int, done: float) -> None:
    progress((number + done) / parts)


def _run_in_processes(
    scenario: Scenario, groups: list[list[str]], logs: list[Path | None], progress: Progress | None, jobs: int
) -> list[Outcome]:
    done = 0

    def count(_future: Future[Outcome]) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done / len(groups))

    with ProcessPoolExecutor(min(jobs, len(groups)), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_group, scenario, names, log) for names, log in zip(groups, logs, strict=True)]
        for future in futures:
            future.add_done_callback(count)
        try:
            return [future.result() for future in futures]
        except BrokenProcessPool:
            problem = "a process of the simulation was killed, perhaps for its memory: use fewer jobs"
            raise ProcessLostError(problem) from None


def _run_on_ray(scenario: Scenario, groups: list[list[str]], logs: list[Path | None], address: str) -> list[Outcome]:
    if any(logs):
        raise ScenarioError("a log is not written by tasks on other machines: leave --log or --ray out")
    try:
        import ray
    except ImportError:
        raise ScenarioError("tasks on a Ray cluster need an extra: pip install 'kvarn[ray]'") from None
    ray.init(address=address, ignore_reinit_error=True)
    task: Any = ray.remote(run_group)
    return list(ray.get([task.remote(scenario, names) for names in groups]))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Have the garbage collector look less often through millions of blocks, none of which is garbage: requests that
    are over go without it. What a simulation leaves, gigabytes perhaps, is freed at once when it is over."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000_000, 20, 100)
    try:
        yield
    finally:
        gc.collect()
        gc.set_threshold(*before)
        gc.unfreeze()


@_rare_collections()
def run_group(
    scenario: Scenario,
    names: list[str],
    log: Path | None = None,
    progress: Progress | None = None,
    traffic: Iterable[Conversation] | None = None,
) -> Outcome:
    """Simulate some of a scenario's models, with the traffic that asks them."""

    def show(now: float) -> None:
        if progress is not None:
            progress(min(1.0, now / scenario.duration_s))

    with ExitStack() as stack:
        write = None if log is None else stack.enter_context(log.open("wb")).write
        with virtual_time_only():
            streams = _streams(scenario, names, traffic)
            simulation = Simulation(scenario, streams, EventLog(write), names, ATTACHED)
        return simulation.run(show)


def _streams(scenario: Scenario, names: list[str], traffic: Iterable[Conversation] | None) -> Iterator[Stream]:
    if traffic is not None:
        yield Stream(iter(traffic), names[0] if len(names) == 1 else "")
        return
    routed = {route.name: route.targets[0].model for route in scenario.config.routes}
    for number, config in enumerate(scenario.traffic):
        asked = _asked(scenario, config)
        if routed.get(asked[0], asked[0]) in names:
            model = asked[0] if len(asked) == 1 else ""
            seed = f"{scenario.seed}/traffic/{number}"
            yield Stream(conversations(config, seed, scenario.duration_s), model, config.priority)


def _asked(scenario: Scenario, traffic: TrafficConfig) -> list[str]:
    """Models that a stream may ask: a trace names them for itself, unless the stream has one."""
    names = [model.name for model in scenario.config.models]
    return [traffic.model] if traffic.model else names if traffic.trace is not None else names[:1]


def _join(scenario: Scenario, outcomes: list[Outcome]) -> Outcome:
    """The outcome of all groups. The hash of several is taken over their hashes, in lines."""
    if len(outcomes) == 1:
        return outcomes[0]
    whole = Outcome(scenario.name, scenario.seed, scenario.duration_s)
    for each in outcomes:
        whole.requests.extend(each.requests)
        whole.deployments += each.deployments
        whole.rollouts += each.rollouts
        whole.fallbacks += each.fallbacks
        whole.ended_s = max(whole.ended_s, each.ended_s)
        whole.num_events += each.num_events
    whole.log_sha256 = hashlib.sha256("".join(f"{each.log_sha256}\n" for each in outcomes).encode()).hexdigest()
    return whole
