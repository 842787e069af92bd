"""Prompts of a given number of tokens; no two share a prefix, except where the plan says so.

Pure after construction. A token is a common short English word with its leading space, which most
byte-pair vocabularies hold as one token; with a tokenizer only words of one cost are used, without
one the ratio of words to tokens is declared. Text is sliced from one long passage, so that a prompt
costs microseconds, and begins with words that encode its own seed, so that no prefix cache can serve
one prompt's blocks to another. A prompt of hash ids is the texts of its blocks, one after the other:
equal ids give equal bytes, so a prefix cache finds what the trace's prompts shared. The salt makes
other text of the same plan, so that a run is not served from the cache that the last one filled.
"""

import hashlib
import random
from pathlib import Path
from typing import Protocol

from surgeproof.errors import ConfigError
from surgeproof.loadgen.prompt_lengths import sample_words

_PASSAGE_WORDS = 200_000
_NONCE_WORDS = 7
_MAX_BLOCKS = 4096
_MIN_WORDS = 64
"""With fewer different words, prompts would be too much alike."""


class Tokenizer(Protocol):
    """Interface of a tokenizer: the ids of a text, without special tokens."""

    def count(self, text: str) -> int:
        """Number of tokens of the text."""
        ...


class PromptMaker:
    """Makes prompts; equal arguments give equal text in every process.

    Args:
        seed: the run's seed.
        salt: any text; another salt makes other text of the same seeds.
        words_per_token: declared ratio where there is no tokenizer.
        tokenizer: counts tokens exactly.
    """

    def __init__(
        self, seed: int, salt: str = "", words_per_token: float = 1.0, tokenizer: Tokenizer | None = None
    ) -> None:
        words = sample_words()
        if tokenizer is not None:
            words, words_per_token = _words_of_one_cost(words, tokenizer)
        self._words = words
        self._words_per_token = words_per_token
        self._salted_seed = _integer_of(f"{seed}/{salt}")
        self._blocks: dict[int, str] = {}
        passage = random.Random(self._salted_seed).choices(words, k=_PASSAGE_WORDS)
        self._offsets = [0]
        for word in passage:
            self._offsets.append(self._offsets[-1] + len(word) + 1)
        self._passage = " ".join(passage) + " "

    def shared_text(self, tokens: int, prompt_seed: int, hash_ids: tuple[int, ...], block_tokens: int) -> str:
        """A prompt of `tokens` tokens made of its blocks' texts; the last block is cut to fit.

        What no id names, at the end, is the prompt's own.
        """
        parts = []
        for number, block in enumerate(hash_ids):
            rest = tokens - number * block_tokens
            if rest <= 0:
                break
            parts.append(self._block(block, round(block_tokens * self._words_per_token)))
        words = max(1, round(tokens * self._words_per_token))
        text = " ".join(parts).split(" ", words)[:words]
        if len(text) < words:
            text.append(self._slice(words - len(text), prompt_seed))
        return " ".join(text)

    def _block(self, block: int, words: int) -> str:
        """The text of one hash id."""
        if block not in self._blocks:
            if len(self._blocks) >= _MAX_BLOCKS:
                self._blocks.clear()
            # Any integer, also a negative or a 64-bit one, becomes a seed of its own.
            self._blocks[block] = self._slice(words, _integer_of(str(block)))
        return self._blocks[block]

    def text(self, tokens: int, prompt_seed: int) -> str:
        """A prompt of `tokens` tokens; its first words are unique to `prompt_seed`."""
        return self._slice(max(1, round(tokens * self._words_per_token)), prompt_seed)

    def _slice(self, wanted: int, prompt_seed: int) -> str:
        """`wanted` words: some that encode the seed, then a piece of the passage."""
        words, base = [], len(self._words)
        prompt_seed ^= self._salted_seed
        rest = prompt_seed
        for _ in range(min(_NONCE_WORDS, wanted)):
            rest, digit = divmod(rest, base)
            words.append(self._words[digit])
        text = " ".join(words)
        wanted -= len(words)
        start = prompt_seed % _PASSAGE_WORDS
        while wanted > 0:
            end = min(start + wanted, _PASSAGE_WORDS)
            text += " " + self._passage[self._offsets[start] : self._offsets[end] - 1]
            wanted -= end - start
            start = 0
        return text


def _integer_of(text: str) -> int:
    """63 bits that any text becomes."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def _words_of_one_cost(words: list[str], tokenizer: Tokenizer) -> tuple[list[str], float]:
    """The words that all cost the fewest tokens inside a text, and how many of them make a token.

    Counted as what a second word adds: some tokenizers put a mark before the whole text. Where no cost is
    common, all words are used at the ratio that a text of them has.
    """
    by_cost: dict[int, list[str]] = {}
    for word in words:
        cost = tokenizer.count(f"{word} {word}") - tokenizer.count(word)
        by_cost.setdefault(cost, []).append(word)
    for cost, alike in sorted(by_cost.items()):
        if cost > 0 and len(alike) >= _MIN_WORDS:
            return alike, 1 / cost
    return words, len(words) / max(1, tokenizer.count(" ".join(words)))


class HuggingFaceTokenizer:
    """A `tokenizer.json`, or the folder of a model that holds one, read by `tokenizers` (extra `tokenizer`).

    Raises:
        ConfigError: the library is not installed, or the file is no tokenizer.
    """

    def __init__(self, path: str) -> None:
        try:
            from tokenizers import Tokenizer as Library
        except ModuleNotFoundError as exc:
            raise ConfigError("--tokenizer needs: pip install 'surgeproof[tokenizer]'") from exc
        file = Path(path)
        try:
            self._library = Library.from_file(str(file / "tokenizer.json" if file.is_dir() else file))
        except Exception as exc:
            raise ConfigError(f"cannot read tokenizer {path}: {exc}") from exc

    def count(self, text: str) -> int:
        """Number of tokens of the text, without special tokens."""
        return len(self._library.encode(text, add_special_tokens=False).ids)
