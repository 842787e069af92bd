"""How the tokens of a text are counted: by the scenario's tokenizer, else by an estimate."""

from surgeproof.loadgen.prompts import HuggingFaceTokenizer
from surgeproof.scenario import LoadConfig
from surgeproof.traces.dataset import CountTokens
from surgeproof.traces.formats.rows import estimated_tokens


def counter_of(load: LoadConfig) -> CountTokens:
    """A function that counts the tokens of a text.

    Raises:
        ConfigError: the tokenizer cannot be read.
    """
    return HuggingFaceTokenizer(load.tokenizer).count if load.tokenizer is not None else estimated_tokens
