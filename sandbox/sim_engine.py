"""A simulated inference engine with continuous batching: a pure discrete-event core.

It knows no socket and no clock. Whoever drives it calls `step(now)`, waits for the returned time
and delivers the returned events. Each step does what vLLM's scheduler does: first one token for
every running sequence, then prefill chunks of waiting ones within a token budget, all within the
KV cache; when the cache is full the youngest sequence is pre-empted and starts over. Step times
grow with tokens, batch and context. Equal seeds and arrivals give equal events.
"""

import heapq
import itertools
import random
from collections import OrderedDict

import msgspec

BLOCK_TOKENS = 16


class EngineOptions(msgspec.Struct, frozen=True):
    """Shape of the simulated engine; times in seconds.

    The defaults are near an 8B model on one data-centre GPU: a step of 6 ms plus 0.05 ms a
    sequence, prefill at 20,000 tokens/s, and 1 ms for every 100,000 tokens of context in the batch.
    """

    max_batch: int = 64
    kv_blocks: int = 16_384
    token_budget: int = 2048
    step_base_s: float = 0.006
    per_sequence_s: float = 0.000_05
    per_prefill_token_s: float = 0.000_05
    per_context_token_s: float = 1e-8
    jitter: float = 0.05
    prefix_cache: bool = True
    priorities: bool = False
    time_scale: float = 1.0
    seed: int = 1


class Sequence:
    """One request inside the engine.

    Args:
        number: order of arrival.
        blocks: ids of the full blocks of prompt and answer, each naming its whole prefix.
        input_tokens: prompt tokens.
        output_tokens: tokens to generate.
        priority: smaller is more urgent, as in vLLM.
    """

    __slots__ = (
        "aborted",
        "blocks",
        "cached_tokens",
        "generated",
        "held_blocks",
        "input_tokens",
        "number",
        "output_tokens",
        "prefilled",
        "priority",
    )  # fmt: skip

    def __init__(self, number: int, blocks: list[int], input_tokens: int, output_tokens: int, priority: int) -> None:
        self.number = number
        self.blocks = blocks
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        self.prefilled = 0
        self.generated = 0
        self.cached_tokens = 0
        self.held_blocks = 0
        self.aborted = False

    @property
    def context(self) -> int:
        """Tokens in the KV cache."""
        return self.prefilled + self.generated


class StepResult(msgspec.Struct, frozen=True):
    """What one step does.

    Attributes:
        duration_s: how long it takes.
        tokens: sequences that have one more token at its end, in order.
        finished: those of them that are complete.
    """

    duration_s: float
    tokens: list[Sequence]
    finished: list[Sequence]


class SimEngine:
    """The scheduler and its counters."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self._random = random.Random(options.seed)
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, Sequence]] = []
        self.running: list[Sequence] = []
        self.free_blocks = options.kv_blocks
        self._cached: OrderedDict[int, None] = OrderedDict()
        self.preemptions = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    @property
    def waiting(self) -> int:
        """Sequences that wait for a place in the batch."""
        return sum(1 for _, _, sequence in self._waiting if not sequence.aborted)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache that running sequences hold."""
        return 1 - self.free_blocks / self.options.kv_blocks

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running) or self.waiting > 0

    def capacity_tokens(self) -> int:
        """Longest context that fits at all."""
        return self.options.kv_blocks * BLOCK_TOKENS

    def add(self, blocks: list[int], input_tokens: int, output_tokens: int, priority: int = 0) -> Sequence:
        """Queue a request."""
        sequence = Sequence(next(self._numbers), blocks, input_tokens, output_tokens, priority)
        self._queue(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """The client has gone; what was computed for it stays in the cache, as in vLLM."""
        sequence.aborted = True
        if sequence in self.running:
            self.running.remove(sequence)
            self._remember_prefix(sequence)
            self._release(sequence)

    def step(self) -> StepResult:
        """Schedule and carry out one step."""
        options = self.options
        self._make_room_for_decodes()
        decoding = [s for s in self.running if s.prefilled >= s.input_tokens]
        budget = max(0, options.token_budget - len(decoding))
        prefill_tokens, first = self._prefill(budget)
        tokens = decoding + first
        context = sum(sequence.context for sequence in self.running)
        duration = options.step_base_s + options.per_sequence_s * len(decoding)
        duration += options.per_prefill_token_s * prefill_tokens + options.per_context_token_s * context
        duration *= options.time_scale * (1 + self._random.uniform(-options.jitter, options.jitter))
        finished = []
        for sequence in tokens:
            sequence.generated += 1
            self.generation_tokens += 1
            if sequence.generated >= sequence.output_tokens:
                finished.append(sequence)
        for sequence in finished:
            self.running.remove(sequence)
            self._remember_prefix(sequence)
            self._release(sequence)
        return StepResult(duration, tokens, finished)

    def _queue(self, sequence: Sequence) -> None:
        urgency = sequence.priority if self.options.priorities else 0
        heapq.heappush(self._waiting, (urgency, sequence.number, sequence))

    def _prefill(self, budget: int) -> tuple[int, list[Sequence]]:
        """Spend the token budget on prompts: those begun first, then the queue's head."""
        spent = 0
        first: list[Sequence] = []
        for sequence in self.running:
            if sequence.prefilled < sequence.input_tokens and spent < budget:
                spent += self._prefill_chunk(sequence, budget - spent, first)
        while spent < budget and self._waiting and len(self.running) < self.options.max_batch:
            _, _, sequence = self._waiting[0]
            if sequence.aborted:
                heapq.heappop(self._waiting)
                continue
            if not self._admit(sequence):
                break
            heapq.heappop(self._waiting)
            self.running.append(sequence)
            spent += self._prefill_chunk(sequence, budget - spent, first)
        return spent, first

    def _prefill_chunk(self, sequence: Sequence, budget: int, first: list[Sequence]) -> int:
        chunk = min(budget, sequence.input_tokens - sequence.prefilled)
        sequence.prefilled += chunk
        self.prompt_tokens += chunk
        if sequence.prefilled >= sequence.input_tokens:
            first.append(sequence)
        return chunk

    def _admit(self, sequence: Sequence) -> bool:
        """Take the blocks of the whole prompt; a cached prefix need not be computed again."""
        needed = -(-sequence.input_tokens // BLOCK_TOKENS) + 1
        if needed > self.free_blocks:
            return False
        self.free_blocks -= needed
        sequence.held_blocks = needed
        cached = self._cached_prefix(sequence) if self.options.prefix_cache else 0
        # At least one token is always computed: it gives the first output.
        sequence.cached_tokens = min(cached, sequence.input_tokens - 1)
        sequence.prefilled = sequence.cached_tokens
        return True

    def _cached_prefix(self, sequence: Sequence) -> int:
        hits = 0
        self.prefix_queries += sequence.input_tokens
        for block in sequence.blocks[: sequence.input_tokens // BLOCK_TOKENS]:
            if block not in self._cached:
                break
            self._cached.move_to_end(block)
            hits += BLOCK_TOKENS
        self.prefix_hits += hits
        return hits

    def _remember_prefix(self, sequence: Sequence) -> None:
        if not self.options.prefix_cache:
            return
        # The last token was never an input, so its keys and values are not known.
        for block in sequence.blocks[: max(0, sequence.context - 1) // BLOCK_TOKENS]:
            self._cached[block] = None
            self._cached.move_to_end(block)
        while len(self._cached) > self.options.kv_blocks:
            self._cached.popitem(last=False)

    def _make_room_for_decodes(self) -> None:
        """Each decoding sequence may need a block more; pre-empt from the back until there are enough."""
        for sequence in list(self.running):
            if sequence not in self.running:
                continue
            while self._block_short(sequence):
                if self.free_blocks > 0:
                    self.free_blocks -= 1
                    sequence.held_blocks += 1
                elif not self._preempt_for(sequence):
                    break

    def _block_short(self, sequence: Sequence) -> bool:
        return sequence.context + 1 > sequence.held_blocks * BLOCK_TOKENS

    def _preempt_for(self, sequence: Sequence) -> bool:
        victim = max(self.running, key=lambda s: (s.priority if self.options.priorities else 0, s.number))
        self.preemptions += 1
        self.running.remove(victim)
        self._release(victim)
        # Recomputation: what was generated becomes part of the prompt.
        victim.input_tokens += victim.generated
        victim.output_tokens -= victim.generated
        victim.generated = victim.prefilled = 0
        self._queue(victim)
        return victim is not sequence

    def _release(self, sequence: Sequence) -> None:
        self.free_blocks += sequence.held_blocks
        sequence.held_blocks = 0
