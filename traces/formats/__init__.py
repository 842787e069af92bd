"""Public trace formats, one pure parser each.

A parser takes numbered lines and yields, for each row, a `Row` with the time as the file states it
(ns, on the file's own axis), a `Dropped` row with a named reason, or a `Malformed` one. Parsers
open no files and decide nothing about what happens to bad rows.
"""

from surgeproof.traces.formats.azure import AzureCsv
from surgeproof.traces.formats.bailian import BailianJsonl
from surgeproof.traces.formats.burstgpt import BurstGptCsv
from surgeproof.traces.formats.column_map import ColumnMap, MappedLines
from surgeproof.traces.formats.evalscope import EvalScopeJsonl
from surgeproof.traces.formats.litellm import LiteLlmJsonl
from surgeproof.traces.formats.mooncake import MooncakeJsonl
from surgeproof.traces.formats.otel import OtelJson
from surgeproof.traces.formats.rows import BadValueError, Dropped, Malformed, Parsed, Row, TraceFormat
from surgeproof.traces.formats.surgeproof_jsonl import SurgeproofJsonl
from surgeproof.traces.formats.vllm import VllmLog

FORMATS: tuple[TraceFormat, ...] = (
    AzureCsv(),
    BurstGptCsv(),
    SurgeproofJsonl(),
    LiteLlmJsonl(),
    EvalScopeJsonl(),
    OtelJson(),
    BailianJsonl(),
    MooncakeJsonl(),
    VllmLog(),
)
"""In the order in which a file's first line is shown to them."""

__all__ = [
    "FORMATS",
    "BadValueError",
    "ColumnMap",
    "Dropped",
    "Malformed",
    "MappedLines",
    "Parsed",
    "Row",
    "TraceFormat",
]
