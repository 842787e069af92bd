"""The tables. Times are integers of nanoseconds since the Unix epoch, on the run's clock."""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData()

alembic_version = Table("alembic_version", metadata, Column("version_num", String(32), primary_key=True))

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("started_at_ns", BigInteger, nullable=False),
    Column("ended_at_ns", BigInteger),
    Column("base_url", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("verdict", Text),
    Column("exit_code", Integer),
    Column("scenario", Text, nullable=False, doc="JSON of the resolved scenario, without secrets"),
    Column("metadata", Text, nullable=False, doc="JSON of the user's key=value tags"),
    Column("environment", Text, nullable=False, doc="JSON: versions, host, git revision of the scenario"),
    Column("audit", Text, doc="JSON of the client's audit"),
    Column("summary", Text, doc="JSON of the summary"),
    Column("spool", Text, doc="folder of the workers' spools until they are stored"),
    Index("ix_runs_started", "started_at_ns"),
    sqlite_autoincrement=True,
)
RUN_JSON = ("scenario", "metadata", "environment", "audit", "summary")
"""Columns of `runs` that hold JSON."""

plans = Table(
    "plans",
    metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("digest", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("requests", Integer, nullable=False),
    Column("packed", LargeBinary, nullable=False, doc="zlib of the plan's arrays (NPZ)"),
    Column("left_out", Float, nullable=False, default=0.0, server_default="0"),
)

records = Table(
    "records",
    metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("plan_index", Integer, primary_key=True, autoincrement=False),
    Column("request_class", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("step", Integer, nullable=False),
    Column("worker", Integer, doc="empty where no worker was known to have taken the request"),
    Column("outcome", Text, nullable=False),
    Column("error", Text),
    Column("http_status", Integer),
    Column("finish_reason", Text),
    Column("planned_input_tokens", BigInteger, nullable=False),
    Column("planned_output_tokens", BigInteger, nullable=False),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("intended_at_ns", BigInteger, nullable=False),
    Column("dispatched_at_ns", BigInteger),
    Column("connect_at_ns", BigInteger),
    Column("resolved_at_ns", BigInteger),
    Column("tcp_connected_at_ns", BigInteger),
    Column("connected_at_ns", BigInteger),
    Column("sent_at_ns", BigInteger),
    Column("headers_at_ns", BigInteger),
    Column("first_byte_at_ns", BigInteger),
    Column("first_event_at_ns", BigInteger),
    Column("first_token_at_ns", BigInteger),
    Column("first_token_not_before_at_ns", BigInteger),
    Column("first_answer_at_ns", BigInteger),
    Column("last_token_at_ns", BigInteger),
    Column("done_at_ns", BigInteger),
    Column("tpot_ns", BigInteger),
    Column("max_gap_ns", BigInteger),
    Column("max_gap_least_ns", BigInteger),
    Column("send_ns", BigInteger),
    Column("token_events", Integer, nullable=False),
    Column("events", Integer, nullable=False),
    Column("body_bytes", BigInteger, nullable=False),
    Column("merged_reads", Integer, nullable=False),
    Column("stamp_source", Text),
    Column("retries", Integer, nullable=False),
    Column("retry_after_s", Float),
    Column("request_id", Text),
    Column("server_timing", Text),
    Column("warnings", Text, doc="names, separated by commas"),
    Column("arrivals", LargeBinary, doc="uint32 microsecond steps from sent_at_ns, one for each token event"),
    Column("model", Text, doc="where a run asks for several"),
    Column("items", Integer, doc="vectors or scores of the answer"),
    Column("task", BigInteger, doc="conversation or task that the request is a part of"),
    Column("turn", Integer, doc="which turn or step of it, from 0"),
    Column("planned_cached_tokens", BigInteger, doc="prompt tokens that earlier requests shared"),
)

record_chunks = Table(
    "record_chunks",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("packed", LargeBinary, nullable=False, doc="the same records as columns, for statistics"),
    Index("ix_record_chunks_run", "run_id"),
)

gap_histograms = Table(
    "gap_histograms",
    metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("request_class", Text, primary_key=True),
    Column("block", Integer, primary_key=True, autoincrement=False, doc="number of ten seconds of planned time"),
    Column("packed", LargeBinary, nullable=False, doc="gaps between arrivals: buckets of 1 % and their counts"),
)

health = Table(
    "health",
    metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("worker", Integer, primary_key=True, autoincrement=False),
    Column("at_ns", BigInteger, primary_key=True, autoincrement=False),
    Column("cpu_share", Float, nullable=False),
    Column("loop_lag_ns", BigInteger, nullable=False),
    Column("gc_pause_ns", BigInteger, nullable=False),
    Column("in_flight", Integer, nullable=False),
    Column("waiting", Integer, nullable=False),
    Column("clock_step_ns", BigInteger, nullable=False),
    Column("rss_bytes", BigInteger, nullable=False),
    Column("reads", BigInteger, nullable=False),
    Column("late_reads", BigInteger, nullable=False),
    Column("run_delay_ns", BigInteger, nullable=False, default=0, server_default="0"),
    Column("throttled_ns", BigInteger, nullable=False, default=0, server_default="0"),
    Column("steal_ns", BigInteger, nullable=False, default=0, server_default="0"),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("request_class", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("metric", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("observed", Float),
    Column("bound", Float, nullable=False),
    Column("n", Integer, nullable=False),
    Column("attainment", Float),
    Column("interval_low", Float),
    Column("interval_high", Float),
    Column("verdict", Text, nullable=False),
    Column("reason", Text, nullable=False),
)

gpu_samples = Table(
    "gpu_samples",
    metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("gpu", Text, primary_key=True, doc="UUID"),
    Column("at_ns", BigInteger, primary_key=True, autoincrement=False),
    Column("sample", Text, nullable=False, doc="JSON of the fields that the GPU reports"),
)

gpu_calibrations = Table(
    "gpu_calibrations",
    metadata,
    Column("gpu", Text, primary_key=True, doc="name of the data sheet"),
    Column("model", Text, primary_key=True),
    Column("fit", Text, nullable=False, doc="JSON of the estimator's numbers"),
)
