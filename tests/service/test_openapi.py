"""Requests drawn from the service's own description, sound and unsound: never a fault of ours."""

import warnings

import pytest

from service.conftest import Running

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, Phase, settings

EXAMPLES_PER_OPERATION = 6
"""Few here, so that the tests stay quick; `benchmarks/serve.py schema --examples 300` draws more."""


@pytest.fixture(scope="module")
def operations(service: Running) -> list[object]:
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    return [found.ok() for found in schema.get_all_operations()]


@pytest.mark.filterwarnings("ignore")
def test_no_drawn_request_is_answered_with_a_fault(operations: list[object]) -> None:
    assert len(operations) >= 12
    for operation in operations:

        @settings(
            max_examples=EXAMPLES_PER_OPERATION,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def draw(case: object) -> None:
            response = case.call(timeout=120)  # type: ignore[attr-defined]
            assert response.status_code < 500, f"{case}: {response.status_code} {response.text[:300]}"

        wrapped = given_case(operation, draw)
        wrapped()


def given_case(operation: object, test: object) -> object:
    from hypothesis import given

    return given(case=operation.as_strategy())(test)  # type: ignore[attr-defined,operator]
