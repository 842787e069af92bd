"""Qwen-Bailian: JSONL with seconds, prefix-chained blocks of 16 tokens, and turns that name the chat they continue."""

from collections.abc import Iterable, Iterator

from surgeproof.records import NS_PER_S
from surgeproof.strict_json import JsonObject
from surgeproof.traces.formats.json_lines import JsonLines
from surgeproof.traces.formats.rows import NumberedLine, Parsed, Row, field, hash_ids, offset_ns, tokens


class BailianJsonl(JsonLines):
    """Reads Qwen-Bailian's anonymous usage traces."""

    name = "bailian"
    columns = '{"chat_id": n, "parent_chat_id": n, "timestamp": s, "input_length": n, "output_length": n}'
    marks = ("chat_id", "parent_chat_id", "timestamp")
    unit_ns: int | None = NS_PER_S
    block_tokens = 16

    def parse(self, lines: Iterable[NumberedLine]) -> Iterator[Parsed]:
        """One object a line; a chat belongs to the session of the chat that it continues."""
        session_of: dict[str | None, str | None] = {}
        for parsed in super().parse(lines):
            if isinstance(parsed, Row):
                session_of[parsed.session] = session_of.get(parsed.continues, parsed.session)
                yield parsed._replace(session=session_of[parsed.session])
            else:
                yield parsed

    def row(self, number: int, value: JsonObject) -> Row:
        """One request, as a session of its own."""
        return Row(
            number,
            offset_ns("timestamp", field(value, "timestamp"), NS_PER_S),
            tokens("input_length", field(value, "input_length")),
            tokens("output_length", field(value, "output_length")),
            hash_ids=hash_ids(value.get("hash_ids")),
            session=str(field(value, "chat_id")),
            continues=str(field(value, "parent_chat_id")),
        )
