"""What one planned request asks, as a part of a body: made prompts, texts for vectors, documents to rank, pictures.

Pure. The form of an API is `request_form`'s.
"""

from typing import Any

import msgspec

from surgeproof.loadgen.pictures import picture_url
from surgeproof.loadgen.prompts import PromptMaker
from surgeproof.records import BLOCK_TOKENS, RequestPlan
from surgeproof.scenario import RERANK_QUERY_TOKENS, LoadConfig
from surgeproof.strict_json import JsonObject

_SEED_STEP = 104_729
"""Added to a prompt's seed for each further text or picture of one request."""
_DRAWS = 1_000_003


class ContentMaker:
    """Makes what requests ask; equal plans give equal content in every process.

    Args:
        prompts: where made text comes from.
        load: pictures, tokens of a block that a hash id names, users who stop reading.

    Attributes:
        keeps_reasoning: later turns tell what was reasoned, too.
    """

    def __init__(self, prompts: PromptMaker, load: LoadConfig) -> None:
        self._prompts = prompts
        self._block_tokens = load.block_tokens or BLOCK_TOKENS
        self._images, self._image_size = load.images, load.image_size
        self._template_tokens = load.template_tokens
        self._stop_share, self._stop_after = load.stop_share, load.stop_after
        self.keeps_reasoning = load.keep_reasoning

    def of(self, plan: RequestPlan, endpoint: str) -> JsonObject:
        """The content of a request to an API of `ENDPOINTS`."""
        if plan.content is not None:
            content = msgspec.json.decode(plan.content, type=dict[str, Any])
        elif endpoint == "rerank":
            return self._documents(plan)
        elif endpoint == "embeddings":
            texts = [
                self._text(plan.input_tokens // plan.items, self._seed(plan, number)) for number in range(plan.items)
            ]
            return {"input": texts if plan.items > 1 else texts[0]}
        elif plan.hash_ids:
            tokens = max(1, plan.input_tokens - self._template_tokens)
            text = self._prompts.shared_text(tokens, plan.prompt_seed, plan.hash_ids, self._block_tokens)
            content = {"prompt": text}
        else:
            # Of a turn that goes on with a conversation, what is new is made here: the template was its first turn's.
            goes_on = plan.continues is not None or plan.with_answers
            history = plan.cached_tokens if goes_on else self._template_tokens
            content = {"prompt": self._text(max(1, plan.input_tokens - history), plan.prompt_seed)}
        return self._with_pictures(content, plan) if self._images else content

    def stop_after(self, plan: RequestPlan) -> int | None:
        """Events with output after which the user of this request stops reading; None for one who reads to the end."""
        drawn = (plan.prompt_seed % _DRAWS) / _DRAWS < self._stop_share
        return self._stop_after if drawn else None

    def _text(self, tokens: int, seed: int) -> str:
        return self._prompts.text(tokens, seed)

    def _documents(self, plan: RequestPlan) -> JsonObject:
        """A question and the documents that are ranked by it; a server reads the question with each of them."""
        tokens = max(1, plan.input_tokens // plan.items - RERANK_QUERY_TOKENS)
        return {
            "query": self._text(RERANK_QUERY_TOKENS, plan.prompt_seed),
            "documents": [self._text(tokens, self._seed(plan, number + 1)) for number in range(plan.items)],
        }

    def _with_pictures(self, content: JsonObject, plan: RequestPlan) -> JsonObject:
        """The pictures of a request behind the text of its last message."""
        messages = content.get("messages") or [{"role": "user", "content": content.get("prompt")}]
        last = messages[-1]
        text = last.get("content")
        parts = list(text) if isinstance(text, list) else [{"type": "text", "text": text}]
        width, height = self._image_size
        parts += [
            {"type": "image_url", "image_url": {"url": picture_url(width, height, self._seed(plan, number))}}
            for number in range(self._images)
        ]
        rest = {name: value for name, value in content.items() if name not in ("prompt", "messages")}
        return rest | {"messages": [*messages[:-1], last | {"content": parts}]}

    @staticmethod
    def _seed(plan: RequestPlan, number: int) -> int:
        return (plan.prompt_seed + _SEED_STEP * number) % 2**63
