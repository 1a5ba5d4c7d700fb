"""Schemathesis over the whole OpenAPI: what it promises and what it forbids, at random, always the same."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from tests.service.running import Service, service
from tests.service.test_roles import operations

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 10
CASES = [
    pytest.param(method, path, mode, id=f"{method} {path} {mode.value}")
    for (method, path), operation in sorted(operations().items())
    for mode in GenerationMode
    # Where nothing is sent, nothing about it can be wrong.
    if mode is GenerationMode.POSITIVE
    or operation.get("requestBody")
    or operation.get("parameters")
]


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with service("--log-level", "error") as found:
        yield found
        assert found.ask("GET", "/health")[2]["status"] == "ok"
        assert "traceback" not in found.log.lower()


@pytest.fixture(scope="module")
def schema(running: Service) -> Any:
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{running.port}/openapi.json")


@pytest.mark.parametrize("method, path, mode", CASES)
def test_nothing_that_is_sent_is_an_error_of_ours(
    schema: Any, method: str, path: str, mode: GenerationMode
) -> None:
    """Good requests and bad ones: answers have the type of an answer, errors that of a problem, and none is a 5xx."""

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def hold(case: Any) -> None:
        if path == "/api/simulate" and mode is GenerationMode.POSITIVE:
            case.body |= {"shape": "own", "seconds": 1}  # Not the minute that some shapes take.
        answer = case.call(timeout=10)
        case.validate_response(answer, checks=[not_a_server_error])
        (kind,) = answer.headers["content-type"]
        if answer.status_code >= 400 and answer.status_code != 429:
            assert kind == "application/problem+json"

    hold()
