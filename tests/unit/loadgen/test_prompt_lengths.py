"""The line through two counts, and tokenizers in a model's folder."""

from pathlib import Path

import pytest

from surgeproof.loadgen.prompt_lengths import PromptLengths, lengths_of, sample_words
from surgeproof.loadgen.prompts import HuggingFaceTokenizer


@pytest.mark.parametrize(
    ("once", "twice", "lengths"),
    [
        (112, 212, PromptLengths(1.0, 12)),
        (212, 412, PromptLengths(0.5, 12)),
        (99, 199, PromptLengths(1.0, 0)),  # words that merge where the text ends
        (50, 50, None),  # a server that cuts prompts
        (50, 20, None),
    ],
)
def test_what_does_not_grow_is_the_template(once: int, twice: int, lengths: PromptLengths | None) -> None:
    assert lengths_of(100, once, twice) == lengths


def test_a_sample_is_spread_over_the_list() -> None:
    words = sample_words()
    sample = sample_words(256)
    assert len(sample) == 256 == len(set(sample))
    assert set(sample) < set(words)
    assert words.index(sample[-1]) > 0.8 * len(words)


def test_a_models_folder_holds_its_tokenizer(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    words = library.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    tokenizer = library.Tokenizer(words)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert HuggingFaceTokenizer(str(tmp_path)).count("a b a") == 3
    assert HuggingFaceTokenizer(str(tmp_path / "tokenizer.json")).count("a b a") == 3
