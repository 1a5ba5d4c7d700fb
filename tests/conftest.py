"""What every test shares: servers, how hard Hypothesis tries, readable failures of our suite."""

import os
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import HealthCheck, settings

# The conformance suite ships with the package, where pytest does not look for asserts by itself.
pytest.register_assert_rewrite("headgate.testing")

# No profile has a deadline, nor a limit for how slowly examples are made: they would measure the machine, not the code.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", settings.get_profile("dev"), derandomize=True
)  # Always the same examples.
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=5_000)

_DEFAULT_PROFILE = "ci" if os.environ.get("CI") == "true" else "dev"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", _DEFAULT_PROFILE))
_TESTS = count()


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a limiter remembers on disk is gone with the test; a later one may have the same server."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.getbasetemp() / f"state-{next(_TESTS)}")
    yield
    del os.environ["XDG_STATE_HOME"]
    if before is not None:
        os.environ["XDG_STATE_HOME"] = before


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have measured (`record_property`), which is kept from sight while they run."""
    for report in terminalreporter.getreports("passed"):
        if report.user_properties:
            measured = ", ".join(f"{name} {value}" for name, value in report.user_properties)
            terminalreporter.write_line(f"{report.nodeid}: {measured}")
