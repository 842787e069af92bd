"""What the chunks of one reply add up to: its choices, why they ended, and their text where it is kept. Pure."""

from surgeproof.loadgen.stream_chunk import Output


class Choices:
    """Which choices a reply has, and why each of them ended."""

    __slots__ = ("finish_by_choice", "finish_reason", "seen")

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.finish_by_choice: dict[int, str] = {}
        self.finish_reason: str | None = None

    def note(self, output: Output) -> None:
        """Take in what one choice of a chunk adds."""
        if output.generated:
            self.seen.add(output.choice)
        if output.finish_reason is not None:
            self.finish_by_choice[output.choice] = output.finish_reason
            if output.choice == 0 or self.finish_reason is None:
                self.finish_reason = output.finish_reason

    @property
    def all_finished(self) -> bool:
        """Whether every choice has its finish reason: the terminal signal where there is no `[DONE]`."""
        return bool(self.finish_by_choice) and self.seen <= self.finish_by_choice.keys()


class AnswerText:
    """The text of a reply, for those who want to read it; not kept under load."""

    def __init__(self) -> None:
        self._answers: dict[int, list[str]] = {}
        self._reasoning: list[str] = []
        self._tool_arguments: list[str] = []

    def add(self, output: Output) -> None:
        """Take in what one choice of a chunk adds."""
        if output.text:
            self._answers.setdefault(output.choice, []).append(output.text)
        if output.reasoning:
            self._reasoning.append(output.reasoning)
        if output.tool_arguments:
            self._tool_arguments.append(output.tool_arguments)

    def add_answer(self, text: str) -> None:
        """Take in a piece of choice 0's visible answer."""
        self._answers.setdefault(0, []).append(text)

    def answer(self, choice: int = 0) -> str:
        """The visible answer of one choice."""
        return _joined(self._answers.get(choice, []))

    def by_choice(self) -> dict[int, str]:
        """The visible answers of all choices."""
        return {index: _joined(parts) for index, parts in self._answers.items()}

    def reasoning(self) -> str:
        """The streamed reasoning."""
        return _joined(self._reasoning)

    def tool_arguments(self) -> str:
        """The assembled tool-call arguments."""
        return _joined(self._tool_arguments)


def _joined(parts: list[str]) -> str:
    """Join text; a surrogate pair split over two chunks becomes one character again."""
    text = "".join(parts)
    if any("\ud800" <= char <= "\udfff" for char in text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
