"""The commands of docs/guides/team.md run as they are printed, in their order."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from printed_commands import commands_of

PAGE = Path(__file__).parents[2] / "docs/guides/team.md"


def test_a_team_gets_keys_and_a_limit(kvarn_inside: Callable[..., Any], tmp_path: Path) -> None:
    environment = {"KVARN_DATA_DIR": str(tmp_path)}
    assert kvarn_inside("store", "upgrade", **environment).returncode == 0  # as the first start of a server does
    ids: dict[str, str] = {}
    ran = []
    for command in commands_of(PAGE.read_text(encoding="utf-8")):
        for beginning, whole in ids.items():
            command = command.replace(f"{beginning}…", whole)
        done = kvarn_inside(*shlex.split(command)[1:], **environment)
        assert done.returncode == 0, (command, done.stderr)
        ran.append((command, done.stdout))
        if "org-" not in ids:
            tenants = map(json.loads, kvarn_inside("tenants", "list", "--json", **environment).stdout.splitlines())
            ids["org-"] = next(tenant["id"] for tenant in tenants if tenant["name"] == "support")
        listed = kvarn_inside("keys", "list", "--tenant", ids["org-"], "--json", **environment).stdout.splitlines()
        ids["key_"] = json.loads(listed[-1])["id"]  # the administrator's is the first
    assert sum(out.startswith("kv-") for _, out in ran) == 3, ran
    limits = kvarn_inside("tenants", "show", ids["org-"], "--json", **environment).stdout
    assert "600" in limits and "100000" in limits
