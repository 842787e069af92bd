"""Prompts of a given number of tokens; no two share a prefix, except where the plan says so.

Pure after construction. A token is a common short English word with its leading space, which most
byte-pair vocabularies hold as one token; with a tokenizer only words for which that is true are
used, without one the ratio of words to tokens is declared. Text is sliced from one long seeded
passage, so that a prompt costs microseconds, and begins with words that encode its own seed, so
that no prefix cache can serve one prompt's blocks to another. A prompt of hash ids is the texts of
its blocks, one after the other: equal ids give equal bytes, so a prefix cache finds what the trace's
prompts shared.
"""

import hashlib
import random
from importlib.resources import files
from typing import Protocol

from surgeproof.errors import ConfigError

_PASSAGE_WORDS = 200_000
_NONCE_WORDS = 7
_MAX_BLOCKS = 4096


class Tokenizer(Protocol):
    """Interface of a tokenizer: the ids of a text, without special tokens."""

    def count(self, text: str) -> int:
        """Number of tokens of the text."""
        ...


class PromptMaker:
    """Makes prompts; equal arguments give equal text in every process.

    Args:
        seed: the run's seed; another seed makes other text, so that a second run is not served
            from the cache that the first one warmed.
        words_per_token: declared ratio where there is no tokenizer.
        tokenizer: counts tokens exactly.
    """

    def __init__(self, seed: int, words_per_token: float = 1.0, tokenizer: Tokenizer | None = None) -> None:
        words = files("surgeproof.loadgen").joinpath("words.txt").read_text("ascii").split()
        if tokenizer is not None:
            single = [word for word in words if tokenizer.count(f" {word}") == 1]
            words = single if len(single) >= 64 else words
        self._words = words
        self._words_per_token = words_per_token
        self._seed = seed
        self._blocks: dict[int, str] = {}
        passage = random.Random(seed).choices(words, k=_PASSAGE_WORDS)
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
            seed = int.from_bytes(hashlib.blake2b(f"{self._seed}/{block}".encode(), digest_size=8).digest())
            self._blocks[block] = self._slice(words, seed)
        return self._blocks[block]

    def text(self, tokens: int, prompt_seed: int) -> str:
        """A prompt of `tokens` tokens; its first words are unique to `prompt_seed`."""
        return self._slice(max(1, round(tokens * self._words_per_token)), prompt_seed)

    def _slice(self, wanted: int, prompt_seed: int) -> str:
        """`wanted` words: some that encode the seed, then a piece of the passage."""
        words, base = [], len(self._words)
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


class HuggingFaceTokenizer:
    """A `tokenizer.json` read by the `tokenizers` library (extra `tokenizer`).

    Raises:
        ConfigError: the library is not installed, or the file is no tokenizer.
    """

    def __init__(self, path: str) -> None:
        try:
            from tokenizers import Tokenizer as Library
        except ModuleNotFoundError as exc:
            raise ConfigError("--tokenizer needs: pip install 'surgeproof[tokenizer]'") from exc
        try:
            self._library = Library.from_file(path)
        except Exception as exc:
            raise ConfigError(f"cannot read tokenizer {path}: {exc}") from exc

    def count(self, text: str) -> int:
        """Number of tokens of the text, without special tokens."""
        return len(self._library.encode(text, add_special_tokens=False).ids)
