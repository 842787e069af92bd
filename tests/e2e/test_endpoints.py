"""A run against each API of the simulated server, from the first byte to the stored figures."""

import json
from pathlib import Path

import pytest

from surgeproof.sandbox.sim_process import SimProcess
from tests.e2e.test_run import rows, surgeproof

COMMON = ("--request-rate", "20", "--arrivals", "constant", "--num-prompts", "20", "--input-len", "30", "--quiet")


def run(sim: SimProcess, folder: Path, *flags: str) -> str:
    result = surgeproof("run", "--base-url", sim.base_url, *COMMON, *flags, cwd=folder)
    # A host whose cores others use may make a client late, which voids a run without objectives.
    assert result.returncode in (0, 5), result.stdout + result.stderr
    return result.stdout


def totals(folder: Path) -> tuple[object, ...]:
    """Answered, prompt and output tokens, token events, items, and how many have a first-token time."""
    (row,) = rows(
        folder / "surgeproof.db",
        "SELECT sum(outcome='ok'), sum(input_tokens), sum(output_tokens), sum(token_events), sum(items), "
        "count(first_token_at_ns) FROM records",
    )
    return tuple(row)


@pytest.mark.parametrize("endpoint", ["responses", "messages"])
def test_typed_streams_are_measured_as_chat_is(sim: SimProcess, tmp_path: Path, endpoint: str) -> None:
    run(sim, tmp_path, "--endpoint", endpoint, "--output-len", "8")
    assert totals(tmp_path) == (20, 600, 160, 160, None, 20)


def test_answers_that_are_asked_for_whole_have_no_first_token(sim: SimProcess, tmp_path: Path) -> None:
    run(sim, tmp_path, "--no-stream", "--output-len", "8")
    assert totals(tmp_path) == (20, 600, 160, 0, None, 0)
    assert rows(tmp_path / "surgeproof.db", "SELECT DISTINCT warnings FROM records") == [(None,)]


@pytest.mark.parametrize(("endpoint", "tokens"), [("embeddings", 4 * 30), ("rerank", 4 * (30 + 32))])
def test_items_a_second_are_judged(sim: SimProcess, tmp_path: Path, endpoint: str, tokens: int) -> None:
    (tmp_path / "slo.yaml").write_text("- items_per_s >= 40\n- e2e p90 < 2s\n")
    run(sim, tmp_path, "--endpoint", endpoint, "--batch-size", "4", "--slo", "slo.yaml", "--num-prompts", "60")
    assert totals(tmp_path) == (60, 60 * tokens, None, 0, 240, 0)
    shown = surgeproof("runs", "show", "1", "--json", cwd=tmp_path)
    figures = json.loads(shown.stdout)["summary"]["classes"]["all"]
    assert figures["items"] == 240
    assert figures["items_per_s"] == pytest.approx(80, rel=0.25)


def test_classes_ask_apis_of_their_own(sim: SimProcess, tmp_path: Path) -> None:
    """One plan: questions with a picture, and vectors in the background."""
    (tmp_path / "mixed.yaml").write_text(
        "load:\n"
        "  classes: {P0: 1, P2: 1}\n"
        "  by_class:\n"
        "    P0: {output_len: 4}\n"
        "    P2: {endpoint: embeddings}\n"
        "slo:\n  P0: [ttft p50 < 5s]\n  P2: [e2e p50 < 5s]\n"
    )
    result = surgeproof("run", "--base-url", sim.base_url, *COMMON, "mixed.yaml", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    by_class = rows(
        tmp_path / "surgeproof.db",
        "SELECT request_class, count(*) = sum(outcome='ok'), min(items), max(output_tokens) FROM records "
        "GROUP BY request_class ORDER BY 1",
    )
    assert by_class == [("P0", 1, None, 4), ("P2", 1, 1, None)]


def test_pictures_cost_tokens_by_their_size(sim: SimProcess, tmp_path: Path) -> None:
    """56 by 28 pixels are two patches, for each of two pictures."""
    run(sim, tmp_path, "--images", "2", "--image-size", "56x28", "--output-len", "2")
    assert totals(tmp_path)[:2] == (20, 20 * (30 + 4))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--endpoint", "embeddings", "--slo", "slo.yaml"), "ttft needs a stream"),
        (("--no-stream", "--goodput", "tpot:50"), "tpot needs a stream"),
        (("--batch-size", "3"), "load.batch_size is of embeddings and rerank"),
        (("--endpoint", "completions", "--images", "1"), "completions takes no pictures"),
        (("--image-size", "big"), "--image-size: 'big' must look like 512x512"),
    ],
)
def test_what_an_api_cannot_give_is_refused_before_the_run(
    sim: SimProcess, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    (tmp_path / "slo.yaml").write_text("- ttft p99 < 1s\n")
    result = surgeproof("run", "--base-url", sim.base_url, *COMMON, *flags, cwd=tmp_path)
    assert result.returncode == 2
    assert said in result.stderr
