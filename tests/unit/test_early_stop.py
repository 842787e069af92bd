"""A run whose first requests all fail is not worth going on; one that serves anybody is."""

from typing import Any

import pytest

from surgeproof.records import StreamRecord
from surgeproof.runs.early_stop import DEFAULT_ABORT_AFTER, EarlyStop
from tests.integration.storage.examples import record


def failed(status: int | None, count: int = 1, outcome: str | None = None) -> list[StreamRecord]:
    name = outcome or f"error:http_{status}"
    return [record(0, outcome=name, http_status=status, error="no such key")] * count


def answered() -> list[StreamRecord]:
    return [record(0, outcome="ok", http_status=200)]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_address_ends_the_run_by_itself(status: int) -> None:
    stop = EarlyStop(None)
    assert stop.take(failed(status, DEFAULT_ABORT_AFTER - 1)) is None
    reason = stop.take(failed(status))
    assert f"none of the first 20 requests was answered (20 × error:http_{status}: no such key)" in str(reason)
    assert stop.take(failed(status)) is None, "told once"


@pytest.mark.parametrize(
    "records",
    [answered(), failed(500), failed(429), failed(None, outcome="error:connect")],
)
def test_a_run_that_may_recover_goes_on(records: Any) -> None:
    stop = EarlyStop(None)
    assert stop.take(records) is None
    assert stop.take(failed(401, 1000)) is None


def test_a_number_that_is_given_counts_failures_of_any_kind() -> None:
    stop = EarlyStop(3)
    assert stop.take(failed(500, 2)) is None
    assert "3 requests" in str(stop.take(failed(None, outcome="error:connect")))
    served = EarlyStop(3)
    assert served.take([*failed(500, 2), *answered(), *failed(500, 100)]) is None


def test_what_was_never_tried_is_no_failure_and_zero_is_never() -> None:
    stop = EarlyStop(3)
    assert stop.take(failed(None, 10, "not_sent") + failed(None, 10, "cancelled")) is None
    assert EarlyStop(0).take(failed(401, 1000)) is None
