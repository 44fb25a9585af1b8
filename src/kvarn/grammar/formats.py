"""Formats of strings as regular expressions, where llguidance's own take texts that are not of the format."""

from __future__ import annotations

_YEAR = "(?:\\d{3}[1-9]|\\d\\d[1-9]0|\\d[1-9]00|[1-9]000)"
_MONTHS = "(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8])"
_LEAP_YEAR = "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = f"(?:{_YEAR}-(?:{_MONTHS})|{_LEAP_YEAR}-02-29)"

_OFFSET = "(?:[zZ]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
_CLOCK = f"(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?{_OFFSET}"


def _leap_seconds() -> str:
    """The last second of a UTC day, in UTC and where whole hours lie between."""
    offsets = [f"\\+{hours:02}:00|-{24 - hours:02}:00" for hours in range(1, 24)]
    elsewhere = [f"{hour:02}:59:60(?:\\.\\d+)?(?:{offset})" for hour, offset in enumerate(offsets)]
    return "|".join(["23:59:60(?:\\.\\d+)?(?:[zZ]|[+-]00:00)", *elsewhere])


_TIME = f"(?:{_CLOCK}|{_leap_seconds()})"

_A, _X = "[A-Za-z0-9]", "[A-Za-z0-9-]"
_LABEL = f"{_A}(?:{_X}?{_A}|{_X}{_A}{_X}{{0,59}}{_A}|{_X}-{_A}(?:{_X}{{0,58}}{_A})?)?"
"""At most 63 characters, without `--` in the third place: such labels are encoded ones (RFC 5890)."""
_HOSTNAME = f"{_LABEL}(?:\\.{_LABEL})*"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"

FORMATS = {
    "date": (f"^{_DATE}$",),
    "time": (f"^{_TIME}$",),
    "date-time": (f"^{_DATE}[tT]{_TIME}$",),
    "hostname": (f"^{_HOSTNAME}$", "^.{1,253}$"),
    "email": (f"^{_ATOM}(?:\\.{_ATOM})*@{_HOSTNAME}$", "^[^@]{1,64}@[^@]{1,189}$"),
}
"""Patterns that stand in a format's place: RFC 3339 with years from 1, RFC 1123, RFC 5321 without quoted names and
addresses in brackets."""
