"""What is printed at the end: how many recorded cases of each family passed, differ by which rule, or failed."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    families: dict[str, Counter[str]] = {}
    for report in [each for kind in ("passed", "failed") for each in terminalreporter.stats.get(kind, ())]:
        for name, value in getattr(report, "user_properties", ()):
            if name.startswith("streams cases") and report.when == "call":
                family, counts = value
                families.setdefault(family + name.removeprefix("streams cases"), Counter()).update(counts)
    if families:
        terminalreporter.section("recorded cases")
    for family, counts in sorted(families.items()):
        terminalreporter.write_line(f"{family:40}" + ", ".join(f"{count:4} {kind}" for kind, count in sorted(counts.items())))
