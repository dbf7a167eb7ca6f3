"""What every test run has: the order of the files, and what each folder took."""

from collections import Counter
from pathlib import PurePosixPath

import pytest

pytest.register_assert_rewrite("tests.support")

FIRST = ("test_sanitizers.py", "test_neon.py", "test_large_sizes.py", "test_tvm_tune.py", "test_recipes.py")
"""The files that take longest: they start first, so that in the end no worker is left alone with one of them."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in FIRST)


def pytest_terminal_summary(terminalreporter):
    seconds, tests = Counter(), Counter()
    for report in (r for reports in terminalreporter.stats.values() for r in reports if hasattr(r, "duration")):
        folder = PurePosixPath(report.nodeid.split("::")[0]).parent
        seconds[folder] += report.duration
        tests[folder] += report.when == "call" or (report.when == "setup" and not report.passed)
    if len(seconds) > 1:
        terminalreporter.section("seconds and tests of each folder")
        for folder, took in seconds.most_common():
            terminalreporter.write_line(f"{took:7.1f} s {tests[folder]:6d}  {folder}")
