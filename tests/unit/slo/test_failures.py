"""Why requests failed: counted by outcome and class, told with the commonest sentence and the way out."""

import pytest

from surgeproof.slo.failures import FailureCount, failure_lines, failures_of, together, way_out


def test_sentences_that_differ_in_numbers_only_are_one_and_the_commonest_is_told() -> None:
    counts = [
        FailureCount("P0", "error:http_400", "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'.", 3),
        FailureCount("P1", "error:http_500", "worker 17 crashed at 0x7f3a91bc", 2),
        FailureCount("P0", "error:http_500", "worker 9 crashed at 0x55aa01", 2),
        FailureCount("P0", "error:http_500", "out of memory", 3),
        FailureCount("P2", "error:timeout", None, 1),
    ]
    failures = failures_of(counts)
    assert [(failure.outcome, failure.count, failure.by_class) for failure in failures] == [
        ("error:http_500", 7, {"P0": 5, "P1": 2}),
        ("error:http_400", 3, {"P0": 3}),
        ("error:timeout", 1, {"P2": 1}),
    ]
    assert failure_lines(failures) == [
        "7 × error:http_500 (P0 5, P1 2): worker 17 crashed at 0x7f3a91bc",
        (
            "3 × error:http_400: Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'. "
            "[give --max-tokens-field max_completion_tokens]"
        ),
        "1 × error:timeout",
    ]


def test_failures_of_several_runs_are_added() -> None:
    first = failures_of([FailureCount("P0", "error:reset", "reset by peer", 2)])
    second = failures_of(
        [FailureCount("P0", "error:reset", "reset by peer", 3), FailureCount("P1", "error:reset", "", 1)]
    )
    (failure,) = together([first, second, ()])
    assert (failure.count, failure.by_class, failure.said) == (6, {"P0": 5, "P1": 1}, "reset by peer")


@pytest.mark.parametrize(
    ("outcome", "said", "words"),
    [
        ("error:http_401", "", "OPENAI_API_KEY"),
        ("error:http_404", "", "/v1"),
        ("error:http_400", "'temperature' must be 1", "--omit temperature"),
        ("error:http_422", "ignore_eos: extra fields not permitted", "leave --ignore-eos out"),
        ("error:http_429", "", "lower the rate"),
        ("error:http_500", "temperature", ""),
        ("error:connect", "", ""),
    ],
)
def test_a_way_out_is_named_where_it_is_known(outcome: str, said: str, words: str) -> None:
    assert words in way_out(outcome, said)
    assert bool(words) is bool(way_out(outcome, said))
