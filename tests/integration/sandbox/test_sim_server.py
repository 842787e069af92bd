"""The simulated engine: a pure core with known step times, and its server's protocol."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from surgeproof.errors import ConfigError
from surgeproof.sandbox.sim_engine import EngineOptions, SimEngine
from surgeproof.sandbox.sim_process import SimProcess
from surgeproof.sandbox.sim_server import prefix_blocks, read_faults


def engine(**options: Any) -> SimEngine:
    return SimEngine(EngineOptions(**{"jitter": 0.0} | options))


def run(core: SimEngine, most: int = 10_000) -> list[tuple[float, list[int]]]:
    """Step until idle: (end time, numbers of sequences that got a token)."""
    now, out = 0.0, []
    for _ in range(most):
        if not core.busy:
            return out
        result = core.step()
        now += result.duration_s
        out.append((now, [sequence.number for sequence in result.tokens]))
    raise AssertionError("the engine never became idle")


def test_one_request_takes_prefill_then_decode_steps() -> None:
    """100 tokens in, 3 out: base + 100 prefill tokens, then two steps of base + one sequence."""
    core = engine(per_context_token_s=0.0)
    core.add([], 100, 3)
    times = [end for end, _ in run(core)]
    options = core.options
    first = options.step_base_s + 100 * options.per_prefill_token_s
    step = options.step_base_s + options.per_sequence_s
    assert times == pytest.approx([first, first + step, first + 2 * step])


def test_long_prompts_are_prefilled_in_chunks_while_others_decode() -> None:
    core = engine(token_budget=100)
    core.add([], 10, 20)
    core.step()
    core.add([], 350, 1)
    tokens = [numbers for _, numbers in run(core)]
    assert tokens.index([0, 1]) == 3
    assert all(0 in numbers for numbers in tokens[:4])


def test_the_batch_is_limited_and_the_rest_waits() -> None:
    core = engine(max_batch=2)
    for _ in range(5):
        core.add([], 10, 4)
    core.step()
    assert (len(core.running), core.waiting) == (2, 3)
    assert len([n for _, numbers in run(core) for n in numbers]) == 5 * 4 - 2


def test_priorities_change_who_is_next() -> None:
    for priorities, order in ((False, [0, 1, 2]), (True, [2, 1, 0])):
        core = engine(max_batch=1, priorities=priorities)
        for priority in (9, 5, 1):
            core.add([], 10, 1, priority)
        assert [n for _, numbers in run(core) for n in numbers] == order


def test_a_full_cache_preempts_the_youngest_and_every_token_still_comes() -> None:
    core = engine(kv_blocks=20, prefix_cache=False)
    sequences = [core.add([], 100, 80) for _ in range(2)]
    run(core)
    assert core.preemptions > 0
    assert core.generation_tokens == 160
    assert core.free_blocks == 20
    assert all(s.generated >= s.output_tokens for s in sequences)


def test_a_cached_prefix_is_not_computed_again() -> None:
    words = [f"w{i}" for i in range(64)]
    core = engine()
    core.add(prefix_blocks(words), 64, 1)
    run(core)
    again = core.add(prefix_blocks([*words[:40], "other", *words[41:]]), 64, 1)
    run(core)
    assert again.cached_tokens == 32
    assert core.prefix_hits == 32
    whole = core.add(prefix_blocks(words), 64, 1)
    run(core)
    assert whole.cached_tokens == 63


def test_decode_slows_with_batch_and_context() -> None:
    small, large = engine(), engine()
    small.add([], 100, 2)
    for _ in range(30):
        large.add([], 100, 2)
    small.step()
    while any(s.prefilled < s.input_tokens for s in large.running) or large.waiting:
        large.step()
    assert large.step().duration_s > small.step().duration_s


def test_an_aborted_request_frees_its_blocks() -> None:
    core = engine()
    sequence = core.add([], 100, 50)
    core.step()
    core.abort(sequence)
    assert core.free_blocks == core.options.kv_blocks
    assert not core.busy


def test_equal_seeds_give_equal_histories() -> None:
    def history() -> list[tuple[float, list[int]]]:
        core = SimEngine(EngineOptions(seed=4))
        for length in (10, 500, 3000):
            core.add([], length, 20)
        return run(core)

    assert history() == history()


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"fire": "0.1"}, "unknown fault"),
        ({"reset": "2"}, "between 0 and 1"),
        ({"reset": "x"}, "between"),
        ({"reset": "0.7", "stall": "0.7"}, "more than 1"),
    ],
)
def test_faults_are_checked(pairs: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_faults(pairs)


def post(base_url: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    request = urllib.request.Request(
        f"{base_url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def test_a_stream_is_role_deltas_finish_usage_done(sim: SimProcess) -> None:
    body = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 2, "stream": True}
    status, text = post(sim.base_url, "/chat/completions", body | {"stream_options": {"include_usage": True}})
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    chunks = [json.loads(event) for event in events[:-1]]
    assert status == 200
    assert events[-1] == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [bool(c["choices"] and c["choices"][0]["delta"].get("content")) for c in chunks] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert chunks[3]["choices"][0]["finish_reason"] == "length"
    assert chunks[4]["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": None
    }  # fmt: skip


def test_completions_models_health_and_metrics_answer(sim: SimProcess) -> None:
    status, text = post(sim.base_url, "/completions", {"prompt": "a b", "max_tokens": 3})
    assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 3)
    root = sim.base_url.removesuffix("/v1")
    for path, expected in (("/v1/models", "max_model_len"), ("/metrics", "vllm:num_requests_running"), ("/health", "")):
        with urllib.request.urlopen(root + path, timeout=20) as reply:
            assert expected in reply.read().decode()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"messages": []}, 400),
        ({"messages": ["x"]}, 400),
        ({"messages": [{"content": "x"}], "max_tokens": "ten"}, 400),
        ({"messages": [{"content": "x"}], "max_tokens": [1]}, 400),
        ({"messages": [{"content": "x"}], "max_tokens": -1}, 400),
        ({"messages": [{"content": "x"}], "priority": {}}, 400),
        ({"messages": [{"content": "x"}], "stream": True, "stream_options": "usage"}, 400),
        ({"messages": [{"content": "x"}], "model": "no"}, 404),
        ({"messages": [{"content": "x"}], "max_tokens": 10**7}, 400),
    ],
)
def test_bad_requests_are_refused(sim: SimProcess, body: dict[str, Any], status: int) -> None:
    code, text = post(sim.base_url, "/chat/completions", body)
    assert code == status
    assert "error" in json.loads(text)
