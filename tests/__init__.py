"""Tests of Tidelog."""

import pytest

# Failed assertions of shared helpers print the compared values, as those of the tests do.
pytest.register_assert_rewrite("tests.support")
