"""Dollars of a deployment: an hour, a million tokens, and where it meets an API's price."""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.planner.answer import Money
from kvarn.planner.devices import POWER_USAGE
from kvarn.planner.quantity import Quantity
from kvarn.planner.request import MoneyRequest

_HOUR_S = 3600.0
_DAY_H = 24.0
MILLION = 1e6


def per_million(dollars_per_hour: float, tokens_per_s: float) -> float:
    return dollars_per_hour / (tokens_per_s * _HOUR_S) * MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    devices: int
    device_hour: Quantity
    watts: Quantity | None
    rate_rps: float
    input_tokens: float
    output_tokens: float
    input_share: float
    """Part of the engine's time that prompts take."""
    full_rps: float
    """Rate at which the devices are as busy as the targets allow."""
    error: float
    """Relative error of that rate."""

    def money(self, request: MoneyRequest) -> Money:
        devices = self._devices_hour()
        services = Quantity(
            value=devices.value * request.services_share,
            unit="$/h",
            formula=f"{request.services_share:.0%} of ${devices.value:,.2f}",
            assumption="egress, storage, load balancers, monitoring: 30 to 50 % of the devices' price is usual",
        )
        total = devices.value + services.value
        hourly = f"${total:,.2f}/h"
        inputs, outputs = self.rate_rps * self.input_tokens, self.rate_rps * self.output_tokens
        full_output = per_million(devices.value, self.full_rps * self.output_tokens)
        api_hour, break_even = self._against_api(request, total)
        return Money(
            device_hour=self.device_hour,
            devices=devices,
            services=services,
            total=Quantity(value=total, unit="$/h", formula=f"${devices.value:,.2f} + ${services.value:,.2f}"),
            per_million_tokens=_dollars(total, inputs + outputs, hourly, "inputs and outputs alike"),
            per_million_input=_dollars(
                total * self.input_share, inputs, f"{self.input_share:.0%} of {hourly}", "by the engine's time"
            ),
            per_million_output=_dollars(
                total * (1 - self.input_share), outputs, f"{1 - self.input_share:.0%} of {hourly}", "by engine's time"
            ),
            full_per_million_output=Quantity(
                value=full_output,
                unit="$/M",
                formula=f"${devices.value:,.2f}/h / {self.full_rps * self.output_tokens:,.0f} output tokens/s / 3600 s",
                assumption="as many requests as the targets allow, day and night; devices alone; outputs bear all",
                error=self.error,
            ),
            api_hour=api_hour,
            break_even_tokens_per_day=break_even,
            power=self._power(),
            energy=self._energy(inputs + outputs),
        )

    def _devices_hour(self) -> Quantity:
        price = self.device_hour
        return Quantity(
            value=self.devices * price.value,
            unit="$/h",
            formula=f"{self.devices} x ${price.value:,.2f}",
            assumption=price.assumption,
            source=price.source,
        )

    def _against_api(self, request: MoneyRequest, total: float) -> tuple[Quantity | None, Quantity | None]:
        if request.api_price is None:
            return None, None
        into, out = request.api_price
        a_request = (self.input_tokens * into + self.output_tokens * out) / MILLION
        api = Quantity(
            value=self.rate_rps * _HOUR_S * a_request,
            unit="$/h",
            formula=f"{self.rate_rps:g} requests/s x 3600 s x ${a_request:.6f}",
            source=f"API's price given: ${into:g} a million inputs, ${out:g} a million outputs",
        )
        if a_request == 0:
            return api, None
        tokens = self.input_tokens + self.output_tokens
        needed = total * _DAY_H / a_request * tokens
        most = self.full_rps * _HOUR_S * _DAY_H * tokens
        reached = "" if needed <= most else f"; never reached: these devices do {most:,.0f} a day at most"
        return api, Quantity(
            value=needed,
            unit="tokens/day",
            formula=f"${total * _DAY_H:,.2f} a day / ${a_request:.6f} a request x {tokens:,.0f} tokens{reached}",
            assumption="the same devices at any traffic that they bear, paid for day and night",
        )

    def _power(self) -> Quantity | None:
        if self.watts is None:
            return None
        return Quantity(
            value=self.devices * self.watts.value * POWER_USAGE / 1000,
            unit="kW",
            formula=f"{self.devices} x {self.watts.value:g} W x {POWER_USAGE}",
            assumption=f"devices at full power, power usage effectiveness {POWER_USAGE}; hosts not counted",
            source=self.watts.source,
        )

    def _energy(self, tokens_per_s: float) -> Quantity | None:
        power = self._power()
        if power is None:
            return None
        return Quantity(
            value=per_million(power.value, tokens_per_s),
            unit="kWh/M tokens",
            formula=f"{power.value:.2f} kW / {tokens_per_s:,.0f} tokens/s",
            assumption=power.assumption,
        )


def _dollars(hourly: float, tokens_per_s: float, formula: str, assumption: str) -> Quantity:
    return Quantity(
        value=per_million(hourly, tokens_per_s),
        unit="$/M",
        formula=f"{formula} / {tokens_per_s:,.0f} tokens/s / 3600 s",
        assumption=f"{assumption}; at the rate that was asked for",
    )
