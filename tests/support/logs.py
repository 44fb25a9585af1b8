"""What the product logs, without what servers of earlier tests and libraries say beside it in the same process."""

from __future__ import annotations

import logging

import pytest


def of_kvarn(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of Kvarn's loggers."""
    return [record for record in caplog.records if record.name.split(".")[0] == "kvarn"]
