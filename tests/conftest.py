"""What every test shares: servers, how hard Hypothesis tries, readable failures of our suite."""

import os

import pytest
from hypothesis import settings

# The conformance suite ships with the package, where pytest does not look for asserts by itself.
pytest.register_assert_rewrite("headgate.testing")

# No profile has a deadline: it would measure the machine, not the code.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)  # The same examples in every run.
settings.register_profile("nightly", deadline=None, max_examples=5_000)

_DEFAULT_PROFILE = "ci" if os.environ.get("CI") == "true" else "dev"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", _DEFAULT_PROFILE))
