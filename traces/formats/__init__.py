"""Public trace formats, one pure parser each.

A parser takes numbered lines and yields, for each row, a `Row` with the time as the file states it
(ns, on the file's own axis), a `Dropped` row with a named reason, or a `Malformed` one. Parsers
open no files and decide nothing about what happens to bad rows.
"""

from surgeproof.traces.formats.azure import AzureCsv
from surgeproof.traces.formats.burstgpt import BurstGptCsv
from surgeproof.traces.formats.mooncake import MooncakeJsonl
from surgeproof.traces.formats.own import SurgeproofJsonl
from surgeproof.traces.formats.rows import Dropped, Malformed, Row, TraceFormat

FORMATS: tuple[TraceFormat, ...] = (AzureCsv(), BurstGptCsv(), SurgeproofJsonl(), MooncakeJsonl())

__all__ = ["FORMATS", "Dropped", "Malformed", "Row", "TraceFormat"]
