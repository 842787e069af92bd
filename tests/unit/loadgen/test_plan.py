"""The plan: one table, seeded by dimension, hashed, shared."""

import zlib
from pathlib import Path

import numpy as np
import pytest

from surgeproof.loadgen.plan import Plan, add_models, add_sessions, make_plan, with_blocks, with_contents
from surgeproof.loadgen.prompts import PromptMaker
from surgeproof.loadgen.request_form import RequestForm
from surgeproof.records import TracePoint
from surgeproof.scenario import TargetConfig
from surgeproof.traces.draw import pair_lengths, replay_times

TIMES = np.arange(1000, dtype=np.int64) * 1_000_000
LENGTHS = np.tile(np.array([[100, 10]], dtype=np.int64), (1000, 1))


def plan(seed: int = 1, weights: dict[str, float] | None = None) -> Plan:
    return make_plan(TIMES, LENGTHS, weights or {"P0": 5, "P1": 3, "P2": 1}, seed)


def test_equal_seeds_give_equal_plans_and_others_do_not() -> None:
    assert plan(7).digest == plan(7).digest
    assert plan(7).digest != plan(8).digest


def test_changing_the_class_mix_moves_neither_times_nor_prompts() -> None:
    one, other = plan(7), plan(7, {"P1": 1})
    assert (one.rows["intended_ns"] == other.rows["intended_ns"]).all()
    assert (one.rows["prompt_seed"] == other.rows["prompt_seed"]).all()
    assert set(other.rows["request_class"]) == {1}


def test_classes_come_in_the_asked_shares() -> None:
    shares = np.bincount(plan().rows["request_class"], minlength=3) / 1000
    assert shares == pytest.approx([5 / 9, 3 / 9, 1 / 9], abs=0.05)


def test_the_shares_of_the_workers_are_the_plan() -> None:
    """Every request belongs to exactly one worker, in order of time."""
    whole = plan()
    shares = [[row.index for row in whole.share(worker, 3)] for worker in range(3)]
    assert sorted(index for share in shares for index in share) == list(range(1000))
    assert all(share == sorted(share) for share in shares)


def test_a_saved_plan_is_the_same_plan(tmp_path: Path) -> None:
    plan().save(tmp_path / "plan.npy")
    assert Plan.load(tmp_path / "plan.npy").digest == plan().digest


def test_a_replay_keeps_recorded_gaps_and_speedup_divides_them() -> None:
    points = [TracePoint(at_ns=at, input_tokens=5, output_tokens=6, row=1) for at in (3_000, 5_000, 9_000)]
    assert replay_times(points, 1.0).tolist() == [0, 2_000, 6_000]
    assert replay_times(points, 2.0).tolist() == [0, 1_000, 3_000]
    assert pair_lengths(points).tolist() == [[5, 6]] * 3


def test_a_row_is_a_request_with_units() -> None:
    row = plan()[5]
    assert (row.index, row.intended_ns, row.input_tokens, row.output_tokens) == (5, 5_000_000, 100, 10)
    assert row.request_class in ("P0", "P1", "P2")


@pytest.mark.parametrize("tokens", [1, 3, 7, 8, 500, 200_001, 450_000])
def test_a_prompt_has_the_asked_number_of_words(tokens: int) -> None:
    assert len(PromptMaker(1).text(tokens, 123_456_789).split()) == tokens


def test_the_declared_ratio_scales_the_words() -> None:
    assert len(PromptMaker(1, words_per_token=0.75).text(100, 5).split()) == 75


def test_prompts_are_the_same_in_every_process_and_differ_from_their_first_words() -> None:
    """No prefix cache can serve one prompt's blocks to another; another run seed makes other text."""
    maker = PromptMaker(1)
    texts = [maker.text(50, seed) for seed in range(2000)]
    again = PromptMaker(1)
    assert texts == [again.text(50, seed) for seed in range(2000)]
    assert len({text[:40] for text in texts}) == 2000
    assert PromptMaker(2).text(50, 9)[60:] != maker.text(50, 9)[60:]


def test_another_salt_makes_other_prompts_of_the_same_length_from_their_first_words_on() -> None:
    """A server must not serve a run from the cache that the last one filled, not even its first block of tokens."""
    one, other = (PromptMaker(1, salt) for salt in ("a", "b"))
    for seed in range(200):
        texts = [maker.text(300, seed).split() for maker in (one, other)]
        assert [len(text) for text in texts] == [300, 300]
        assert texts[0][:4] != texts[1][:4]
        blocks = [maker.shared_text(64, seed, (1, 2), 16).split() for maker in (one, other)]
        assert blocks[0][:4] != blocks[1][:4]


def test_a_tokenizer_leaves_only_words_that_are_one_token() -> None:
    class Short:
        """Words of up to four letters are one token, others two, and a mark stands before the text, as Llama 2's."""

        def count(self, text: str) -> int:
            return 1 + sum(1 if len(word) <= 4 else 2 for word in text.split())

    text = PromptMaker(1, tokenizer=Short()).text(2000, 3)
    assert max(map(len, text.split())) <= 4
    assert Short().count(text) == 2001


def test_where_every_word_costs_several_tokens_fewer_words_make_the_length() -> None:
    class Letters:
        def count(self, text: str) -> int:
            return len(text)

    assert Letters().count(PromptMaker(1, tokenizer=Letters()).text(1000, 3)) == pytest.approx(1000, abs=5)


def test_where_no_cost_is_common_the_length_is_right_on_average() -> None:
    class Spread:
        """Costs from 1 to 101 tokens a word: none is shared by 64 words."""

        def count(self, text: str) -> int:
            return sum(1 + zlib.crc32(word.encode()) % 101 for word in text.split())

    maker = PromptMaker(1, tokenizer=Spread())
    counts = [Spread().count(maker.text(20_000, seed)) for seed in range(20)]
    assert np.mean(counts) == pytest.approx(20_000, rel=0.05)


def test_turns_of_a_session_stay_with_one_worker() -> None:
    plan = make_plan(np.arange(6, dtype=np.int64), np.ones((6, 2), dtype=np.int64), {"P1": 1.0}, 1)
    add_sessions(plan, [7, None, 7, None, 8, 7], [None, None, 1.5, None, None, None])
    shares = [[request.index for request in plan.share(worker, 2)] for worker in (0, 1)]
    assert sorted(shares[0] + shares[1]) == list(range(6))
    assert {0, 2, 5} <= set(shares[1])
    assert [(r.session, r.turn, r.think_ns) for r in plan.share(1, 2) if r.session == 7] == [
        (7, 0, None),
        (7, 1, 1_500_000_000),
        (7, 2, None),
    ]


def test_blocks_survive_packing_and_count_for_the_digest() -> None:
    rows = make_plan(np.arange(3, dtype=np.int64), np.ones((3, 2), dtype=np.int64), {"P1": 1.0}, 1)
    plan = with_blocks(rows, [(1, 2**62), (), (-5,)], [0, 0, 1])
    again = Plan.unpack(plan.pack())
    assert [again[i].hash_ids for i in range(3)] == [(1, 2**62), (), (-5,)]
    assert again.digest == plan.digest != rows.digest
    assert again[2].cached_tokens == 1


def test_prompts_share_what_their_blocks_say_and_nothing_else() -> None:
    """Blocks of 16 tokens: two shared, then each its own; a third prompt shares one."""
    maker = PromptMaker(seed=3)
    texts = [
        maker.shared_text(44, seed, ids, 16).split()
        for seed, ids in ((1, (10, 20, 30)), (2, (10, 20, 31)), (3, (10, 21, 30)))
    ]
    assert [len(text) for text in texts] == [44, 44, 44]
    assert texts[0][:32] == texts[1][:32]
    assert texts[0][32:39] != texts[1][32:39]
    assert texts[0][:16] == texts[2][:16]
    assert texts[0][16:23] != texts[2][16:23]
    # What no id names is the prompt's own, and another seed is another cache.
    longer = [maker.shared_text(40, seed, (10,), 16).split() for seed in (1, 2)]
    assert longer[0][:16] == longer[1][:16]
    assert longer[0][16:] != longer[1][16:]
    assert PromptMaker(seed=4).shared_text(44, 1, (10, 20, 30), 16).split()[:7] != texts[0][:7]


def test_models_are_drawn_by_weight_and_a_session_keeps_its_own() -> None:
    times = np.arange(4000, dtype=np.int64)
    plan = make_plan(times, np.ones((4000, 2), dtype=np.int64), {"P1": 1.0}, 1)
    add_sessions(plan, [i % 50 if i % 2 else None for i in range(4000)], [None] * 4000)
    add_models(plan, (3.0, 1.0), 1)
    assert np.mean(plan.rows["model"][::2] == 0) == pytest.approx(0.75, abs=0.04)
    for session in range(1, 50, 2):
        assert len(set(plan.rows["model"][plan.rows["session"] == session])) == 1
    form = RequestForm(TargetConfig(), "x", models=("base", "adapter"))
    assert form.body("p", 1, None, include_usage=False, model=1)["model"] == "adapter"


def test_fields_can_be_left_out_and_a_datasets_row_has_its_own() -> None:
    form = RequestForm(TargetConfig(omit=("temperature", "stream_options", "max_tokens")), "x")
    made = form.body("hi", 5, None, include_usage=True)
    assert made == {"model": "x", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    kind = {"type": "json_object"}
    row = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.7, "response_format": kind}
    sent = RequestForm(TargetConfig(), "x").body_of(row, 9, None, include_usage=True)
    assert sent["temperature"] == 0.7
    assert sent["max_tokens"] == 9
    assert sent["response_format"] == kind
    completions = RequestForm(TargetConfig(endpoint="completions"), "x")
    text = completions.body_of({"prompt": [1, 2]}, 9, None, include_usage=False)
    assert text["prompt"] == [1, 2]


def test_contents_survive_the_file_and_are_not_stored(tmp_path: Path) -> None:
    rows = make_plan(np.arange(5, dtype=np.int64), np.ones((5, 2), dtype=np.int64), {"P1": 1.0}, 1)
    plan = with_contents(rows, [b'{"prompt":"a"}', b'{"prompt":"bcd"}'], np.array([0, 1, 0, 1, -1]))
    plan.save(tmp_path / "plan.npz")
    again = Plan.load(tmp_path / "plan.npz")
    assert [again[index].content for index in range(5)] == [
        b'{"prompt":"a"}', b'{"prompt":"bcd"}', b'{"prompt":"a"}', b'{"prompt":"bcd"}', None,
    ]  # fmt: skip
    assert again.digest == plan.digest != rows.digest
    assert b"bcd" not in Plan.unpack(plan.without_contents().pack()).rows.tobytes()
    assert Plan.unpack(plan.without_contents().pack())[0].content is None
