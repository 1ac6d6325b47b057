"""Tests of Tidelog."""

import pytest

# The assertions of shared helpers say what was compared, as those of the tests do.
pytest.register_assert_rewrite("tests.support")
