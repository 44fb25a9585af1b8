"""Personal data and secrets are taken out of everything that is logged.

What is found is replaced by its kind in brackets, such as `[email]`. Numbers that carry a check (cards, IBANs, IP
addresses) are replaced only where it holds. Every pattern repeats within bounds, so a hostile text costs no more than
a long one.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

_URL_PASSWORD = re.compile(r"(://[^\s/:@]{0,128}:)[^\s/@]{1,256}@")
_EMAIL = re.compile(r"[\w.%+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_KEY = re.compile(
    r"\b(?!kv[-_](?:cache|block))(?:(?:sk|pk|rk|kv|hf|gh[opusr]|glpat|xox[abprs])[-_][\w-]{8,256}|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{30,64}"
    r"|eyJ[\w-]{8,4096}\.[\w-]{8,8192}\.[\w-]{0,1024})"
)
_BEARER = re.compile(r"(?i)\b(bearer\s{1,8}|basic\s{1,8}(?=[a-z+/]{0,256}[\d=]))[\w.~+/=-]{6,8192}")
_NAMED_SECRET = re.compile(
    r"(?i)\b((?:x-)?api[-_ ]?key|authorization|password|passwd|secret|(?:access|refresh)[-_]token|set-cookie|cookie)"
    r"(['\"]{0,2}\s{0,4}[:=]\s{0,4}['\"]{0,2})(?!\[|bearer|basic)([^\s'\",;&]{3,8192})"
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\w)")
_IPV6 = re.compile(r"(?<![\w:.])(?=[\da-fA-F]{0,4}:[\da-fA-F]{0,4}:)[\da-fA-F:]{3,39}(?![\w:])")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,3})?\b")
_CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])")
_PHONE = re.compile(
    r"(?<![\w.+-])(?:"
    r"(?:\+|00)[1-9](?:[ ./()-]{0,2}\d){6,14}"  # +46 70-123 45 67
    r"|\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}"  # (555) 123-4567
    r"|0\d{1,4}[ /-]\d{2,4}(?:[ -]?\d{2,4}){1,3}"  # 070-123 45 67
    r")(?![\w-])"
)
_MANY_DIGITS = re.compile(r"\d(?:[ ./()-]{0,2}[\dA-Z]){6}")
_SECRET_WORDS = ("bearer", "basic", "key", "authoriz", "passw", "secret", "token", "cookie")
_KEY_BEGINNINGS = ("sk", "pk", "rk", "kv", "hf", "gh", "xox", "AKIA", "ASIA", "AIza", "eyJ", "glpat")
"""Looked for first: nearly all lines hold nothing, and substrings are found faster than patterns."""


def redact(text: str) -> str:
    """The text without e-mail addresses, phone and card numbers, IBANs, IP addresses, keys, tokens and passwords.
    Addresses of this machine itself (loopback, unspecified) stay: they name nobody."""
    if "@" in text:
        text = _EMAIL.sub("[email]", _URL_PASSWORD.sub(r"\1[secret]@", text))
    lower = text.lower()
    if any(word in lower for word in _SECRET_WORDS):
        text = _NAMED_SECRET.sub(r"\1\2[secret]", _BEARER.sub(r"\1[token]", text))
    if any(beginning in text for beginning in _KEY_BEGINNINGS):
        text = _KEY.sub("[key]", text)
    if text.count(":") > 1:
        text = _IPV6.sub(_redact_address, text)
    if text.count(".") > 2:
        text = _IPV4.sub(_redact_address, text)
    if _MANY_DIGITS.search(text):
        text = _CARD.sub(_redact_card, _IBAN.sub(_redact_iban, text))
        text = _PHONE.sub("[phone]", text)
    return text


def _redact_address(found: re.Match[str]) -> str:
    try:
        address = ip_address(found[0])
    except ValueError:
        return found[0]
    return found[0] if address.is_loopback or address.is_unspecified else "[ip]"


def _redact_card(found: re.Match[str]) -> str:
    digits = [int(digit) for digit in found[0] if digit.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return found[0] if (sum(digits[-1::-2]) + sum(doubled)) % 10 else "[card]"


def _redact_iban(found: re.Match[str]) -> str:
    account = found[0].replace(" ", "")
    rearranged = "".join(str(int(character, 36)) for character in account[4:] + account[:4])
    return "[iban]" if 15 <= len(account) <= 34 and int(rearranged) % 97 == 1 else found[0]
