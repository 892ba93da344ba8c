# SPDX-License-Identifier: MIT
import os

import numpy as np
import pytest


@pytest.fixture
def draw():
    """draw(shape): float32 numbers, the same ones for each test."""
    rng = np.random.default_rng(20)
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)


def pytest_terminal_summary(terminalreporter):
    """With ATTN_TAP the results as lines of TAP, which tests/run of the tree counts."""
    if "ATTN_TAP" not in os.environ:
        return
    terminalreporter.ensure_newline()
    n = 0
    for kind, line in (("passed", "ok {} - {}"), ("failed", "not ok {} - {}"),
                       ("error", "not ok {} - {}"), ("skipped", "ok {} - {} # SKIP {}")):
        for report in terminalreporter.stats.get(kind, []):
            n += 1
            why = report.longrepr[2] if kind == "skipped" else ""
            terminalreporter.write_line(line.format(n, report.nodeid, why))
