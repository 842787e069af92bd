"""How many tokens prompts of our words have on a server: a line through the counts of one text and of the same twice.

Pure. A chat template, a default system prompt and marks before the text are the part that does not grow.
"""

from importlib.resources import files

from msgspec import Struct


class PromptLengths(Struct, frozen=True):
    """What a server makes of our words.

    Attributes:
        words_per_token: words that make a token of the text.
        template_tokens: tokens that it adds to every prompt.
    """

    words_per_token: float
    template_tokens: int


def sample_words(count: int | None = None) -> list[str]:
    """Words that prompts are made of, evenly from the list; all of them without a count."""
    words = files("surgeproof.loadgen").joinpath("words.txt").read_text("ascii").split()
    return words if count is None else words[:: max(1, len(words) // count)][:count]


def lengths_of(words: int, once: int, twice: int) -> PromptLengths | None:
    """The lengths, from the tokens of a prompt of some words and of a prompt of the same words twice.

    Returns:
        None where the longer one has no more tokens: the server counts something else, or cuts prompts.
    """
    slope = twice - once
    if slope <= 0:
        return None
    return PromptLengths(words / slope, max(0, once - slope))
