"""Print the rules for Prometheus, with links to a runbook that stands elsewhere."""

from __future__ import annotations

import argparse
import sys

from kvarn.observe.alerts.prometheus import rules_file


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kvarn.observe.alerts", description=__doc__)
    parser.add_argument(
        "--runbook", default="docs/operate/runbook.md", help="address of the runbook, for links in notifications"
    )
    sys.stdout.write(rules_file(runbook=parser.parse_args().runbook))


if __name__ == "__main__":
    main()
