"""What every test run has."""

import pytest

pytest.register_assert_rewrite("tests.support")
