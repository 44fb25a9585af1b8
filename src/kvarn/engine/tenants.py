"""Tokens served to each tenant: the accounts of fair scheduling (see `kvarn.fairness.queue`), kept within a bound."""

from __future__ import annotations

from collections import OrderedDict

from kvarn.fairness.queue import Account


class TenantAccount(Account):
    __slots__ = ("live_requests", "served_tokens")

    def __init__(self, name: str, weight: float) -> None:
        super().__init__(name, weight)
        self.served_tokens = 0  # prompt tokens computed and tokens drawn
        self.live_requests = 0


class TenantAccounts:
    """All accounts. Those of idle tenants are kept up to a bound, then folded into one total."""

    OTHERS = "(others)"
    """Name under which the totals of forgotten tenants are reported."""

    def __init__(self, input_token_weight: float, output_token_weight: float, max_idle: int = 1_000) -> None:
        self._input_cost = input_token_weight
        self._output_cost = output_token_weight
        self._max_idle = max_idle
        self._accounts: dict[str, TenantAccount] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._forgotten_tokens = 0

    def open(self, name: str, weight: float) -> TenantAccount:
        """The tenant's account with one live request more. The latest request's weight counts from now on."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = TenantAccount(name, weight)
        self._idle.pop(name, None)
        account.weight = weight
        account.live_requests += 1
        return account

    def close(self, account: TenantAccount) -> None:
        account.live_requests -= 1
        if account.live_requests == 0:
            self._idle[account.name] = None
            if len(self._idle) > self._max_idle:
                name, _ = self._idle.popitem(last=False)
                self._forgotten_tokens += self._accounts.pop(name).served_tokens

    def charge_input(self, account: TenantAccount, tokens: int) -> None:
        """Charge prompt tokens that are computed for the first time; a negative number takes a charge back."""
        account.served_tokens += tokens
        account.charge(tokens * self._input_cost)

    def charge_output(self, account: TenantAccount, tokens: int) -> None:
        account.served_tokens += tokens
        account.charge(tokens * self._output_cost)

    def charge_outputs(self, account: TenantAccount, times: int) -> None:
        """Charge single tokens, so many times."""
        account.served_tokens += times
        account.charge_times(self._output_cost, times)

    def charge_rejected(self, account: TenantAccount, tokens: int) -> None:
        """Charge proposals that were computed and not drawn: as prompt tokens, but not as tokens served."""
        account.charge(tokens * self._input_cost)

    def served_tokens(self) -> dict[str, int]:
        totals = {name: account.served_tokens for name, account in self._accounts.items()}
        if self._forgotten_tokens:
            totals[self.OTHERS] = totals.get(self.OTHERS, 0) + self._forgotten_tokens
        return totals
