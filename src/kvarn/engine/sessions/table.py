"""Sessions of which turns have come, the least recently used forgotten first. Pure: times are given."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from kvarn.engine.errors import IntegrityError
from kvarn.engine.memory.prefix_cache import PrefixNode
from kvarn.engine.sessions.branch import Branch, TurnEnd
from kvarn.engine.sessions.gaps import GapEstimate, Gaps
from kvarn.wire.sessions import SessionEvent, SessionNews, SessionTurn

_FIRST = (GapEstimate(mu=4.1, sigma=1.5, share=0.6), GapEstimate(mu=2.3, sigma=1.5, share=0.9))
"""Expected before any gap was seen, by `TurnEnd`: people come back after a minute, tools after ten seconds."""
_ALL_STRENGTH, _TENANT_STRENGTH, _SESSION_STRENGTH = 4.0, 8.0, 3.0
"""Observations that the level above counts for."""
_KEEP, _SESSION_KEEP = 0.995, 0.9
_MAX_BRANCHES = 64


def _levels(keep: float) -> tuple[Gaps, Gaps]:
    return Gaps(keep), Gaps(keep)


@dataclass(slots=True, eq=False)
class Session:
    tenant: str
    gaps: tuple[Gaps, Gaps] = field(default_factory=lambda: _levels(_SESSION_KEEP))
    branches: list[Branch] = field(default_factory=list)  # the one used last at the end

    @property
    def is_active(self) -> bool:
        return any(branch.active for branch in self.branches)


class Sessions:
    def __init__(self, max_sessions: int = 8192, max_tenants: int = 1024) -> None:
        self._max_sessions = max_sessions
        self._max_tenants = max_tenants
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._all = _levels(_KEEP)
        self._tenants: OrderedDict[str, tuple[Gaps, Gaps]] = OrderedDict()
        self._awaited: list[tuple[float, int, Session, Branch]] = []
        """Heap of conversations, each at most once, by the time at which it is looked whether they came back."""
        self._entered = 0
        self._tips: dict[PrefixNode, list[Branch]] = {}
        self.returns = 0  # turns that went on with a conversation
        self.returns_resident = 0  # of those, the ones whose latest state was in the prefix cache, to its last block

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session: bytes) -> Session | None:
        return self._sessions.get(session)

    def begin(
        self, turn: SessionTurn, tenant: str, found: Sequence[PrefixNode], prompt_blocks: int, now: float
    ) -> tuple[Branch, PrefixNode | None]:
        """A turn has come, whose prompt begins with the cached nodes `found`: the branch it goes on with. Where that
        conversation has left a state behind (it was edited, or shortened), that is marked as spent; its last node is
        returned too."""
        self._give_up(now)
        session = self._sessions.get(turn.id)
        if session is None:
            session = self._sessions[turn.id] = Session(tenant)
        self._sessions.move_to_end(turn.id)
        branch, common = _branch_of(session, found, prompt_blocks)
        spent = None
        if branch is None:
            branch = Branch(prompt_blocks)
        else:
            spent = self._go_on(session, branch, common, now)
            session.branches.remove(branch)
        session.branches.append(branch)
        branch.active += 1
        branch.keep_s, branch.expected_s = turn.keep_s, None
        self._forget_oldest(session)
        return branch, spent

    def end(self, turn: SessionTurn, request_id: str, branch: Branch, now: float) -> None:
        """A turn is over, however it ended."""
        branch.active -= 1
        branch.turn = request_id
        branch.left_s, branch.end = now, TurnEnd.ANSWER
        branch.has_ended = turn.is_last and not branch.active
        session = self._sessions.get(turn.id)
        if session is not None:
            branch.estimates = [self._estimate(session, end) for end in TurnEnd]
            branch.forget_probability()
            if branch.has_ended:
                self._count_ended(session, branch)
            elif not branch.is_awaited:
                branch.is_awaited = True
                self._await(session, branch)
        else:
            branch.has_ended = True  # its session was forgotten meanwhile

    def note(self, news: SessionNews, now: float) -> list[Branch]:
        """An event between turns; returns the conversations that it is about."""
        session = self._sessions.get(news.session)
        if session is None:
            return []
        rests = [branch for branch in session.branches if not branch.active and not branch.has_ended]
        match news.event:
            case SessionEvent.CALLED_TOOLS:
                rests = [branch for branch in rests if branch.turn == news.turn]
                for branch in rests:
                    branch.end = TurnEnd.TOOL_CALLS
            case SessionEvent.RETURNS:
                rests = rests[-1:]
                for branch in rests:
                    branch.expected_s = now
            case SessionEvent.ENDED:
                for branch in rests:
                    branch.has_ended = True
                    self._count_ended(session, branch)
        for branch in rests:
            branch.forget_probability()
        return rests

    def set_tip(self, branch: Branch, node: PrefixNode) -> None:
        """The latest path of a conversation ends with this node."""
        self._move_tip(branch, node)
        branch.blocks = node.depth

    def removed(self, node: PrefixNode) -> None:
        """A node leaves the prefix cache: what ended there ends with the one before it."""
        for branch in self._tips.pop(node, ()):
            branch.tip = None
            self._move_tip(branch, node.parent)

    def _move_tip(self, branch: Branch, node: PrefixNode | None) -> None:
        if branch.tip is not None:
            there = self._tips[branch.tip]
            there.remove(branch)
            if not there:
                del self._tips[branch.tip]
        branch.tip = node if node is not None and node.depth else None
        if branch.tip is not None:
            self._tips.setdefault(branch.tip, []).append(branch)

    def check_integrity(self, nodes: Mapping[int, PrefixNode]) -> None:
        """Recount: conversations end at nodes of the prefix cache. Raises `IntegrityError`."""
        for tip, branches in self._tips.items():
            if nodes.get(tip.block) is not tip or not branches or any(branch.tip is not tip for branch in branches):
                raise IntegrityError(f"a conversation ends at block {tip.block}, which is not cached")
        if any(branch.active < 0 for session in self._sessions.values() for branch in session.branches):
            raise IntegrityError("a conversation has fewer turns than have ended")

    def forget(self, tenant: str) -> None:
        for name in [name for name, session in self._sessions.items() if session.tenant == tenant]:
            del self._sessions[name]
        self._tenants.pop(tenant, None)

    # Those that do not return -----------------------------------------------------------------------------------------

    def _await(self, session: Session, branch: Branch) -> None:
        self._entered += 1
        due_s = _left_s(branch) + branch.estimates[branch.end].longest_s
        heapq.heappush(self._awaited, (due_s, self._entered, session, branch))

    def _give_up(self, now: float) -> None:
        """Count those that have been away for longer than others come back after: the share that returns is learned
        from them."""
        most = 2 * self._max_sessions
        while self._awaited and (self._awaited[0][0] <= now or len(self._awaited) > most):
            due_s, _, session, branch = heapq.heappop(self._awaited)
            branch.is_awaited = False
            if branch.active or branch.has_ended or due_s > now:
                continue
            if now < _left_s(branch) + branch.estimates[branch.end].longest_s:
                branch.is_awaited = True
                self._await(session, branch)
            else:
                self._count_ended(session, branch)

    # Gaps -------------------------------------------------------------------------------------------------------------

    def _go_on(self, session: Session, branch: Branch, common: int, now: float) -> PrefixNode | None:
        """Learn the gap; mark what lies behind the common part as spent, and return its last node."""
        tip, spent = branch.tip, None
        if not branch.active and branch.left_s is not None and not branch.has_ended:
            self.returns += 1
            gap_s = now - branch.left_s
            for level in self._levels_of(session):
                level[branch.end].returned(gap_s)
            self.returns_resident += tip is not None and tip.depth == branch.blocks
        node = tip
        while node is not None and node.depth > common:
            if node.branch is branch:
                node.branch = Branch.SPENT
                spent = spent or node
            node = node.parent
        if spent is not None:
            self._move_tip(branch, node)
        return spent

    def _count_ended(self, session: Session, branch: Branch) -> None:
        for level in self._levels_of(session):
            level[branch.end].ended()

    def _estimate(self, session: Session, end: TurnEnd) -> GapEstimate:
        of_all, of_tenant, own = (level[end] for level in self._levels_of(session))
        tenant = of_tenant.estimate(of_all.estimate(_FIRST[end], _ALL_STRENGTH), _TENANT_STRENGTH)
        return own.estimate(tenant, _SESSION_STRENGTH)

    def _levels_of(self, session: Session) -> tuple[tuple[Gaps, Gaps], ...]:
        tenant = self._tenants.setdefault(session.tenant, _levels(_KEEP))
        self._tenants.move_to_end(session.tenant)
        if len(self._tenants) > self._max_tenants:
            self._tenants.popitem(last=False)
        return self._all, tenant, session.gaps

    def _forget_oldest(self, session: Session) -> None:
        """Keep within the bounds. What is forgotten here loses its value with time as it would have."""
        branches = (branch for branch in session.branches if not branch.active)
        for branch in list(islice(branches, max(0, len(session.branches) - _MAX_BRANCHES))):
            session.branches.remove(branch)
        names = (name for name, each in self._sessions.items() if not each.is_active)
        for name in list(islice(names, max(0, len(self._sessions) - self._max_sessions))):
            del self._sessions[name]


def _left_s(branch: Branch) -> float:
    assert branch.left_s is not None, "a turn of it has ended"
    return branch.left_s


def _branch_of(session: Session, found: Sequence[PrefixNode], prompt_blocks: int) -> tuple[Branch | None, int]:
    """The branch with which a prompt goes on that begins with the nodes `found`, and the blocks they have in common.

    The last node that is on the path of one conversation alone tells which; the prompt has to share the whole first
    prompt with it, but for its last block, which ends in what opens an answer. Of a conversation whose end was evicted
    all that is left must be shared, and the prompt be no shorter than its path.
    """
    common = len(found)
    while common and _is_over(found[common - 1].branch):
        common -= 1
    last = found[common - 1].branch if common else None
    if last is not None and last in session.branches and common >= last.first_blocks - 1:
        return last, common
    for branch in reversed(session.branches):
        tip = branch.tip
        left = 0 if tip is None else tip.depth
        is_shared = not left or (left <= len(found) and found[left - 1] is tip)
        if left < branch.blocks <= prompt_blocks and is_shared and not branch.active and not branch.has_ended:
            return branch, left
    return None, 0


def _is_over(branch: Branch | None) -> bool:
    return branch is None or branch.has_ended
