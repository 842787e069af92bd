"""The first schema: runs, plans, records, health, verdicts."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """From an empty database."""
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("uid", sa.Text(), nullable=False, unique=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("started_at_ns", sa.BigInteger(), nullable=False),
        sa.Column("ended_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("base_url", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("scenario", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("audit", sa.Text(), nullable=True),
        sa.Column("summary", sa.Text(), nullable=True),
        sa.Column("spool", sa.Text(), nullable=True),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "schema_info",
        sa.Column("version", sa.Integer(), nullable=False),
    )
    op.create_table(
        "health",
        sa.Column("run_id", sa.Integer(), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("worker", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("at_ns", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("cpu_share", sa.Float(), nullable=False),
        sa.Column("loop_lag_ns", sa.BigInteger(), nullable=False),
        sa.Column("gc_pause_ns", sa.BigInteger(), nullable=False),
        sa.Column("in_flight", sa.Integer(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("clock_step_ns", sa.BigInteger(), nullable=False),
        sa.Column("rss_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reads", sa.BigInteger(), nullable=False),
        sa.Column("late_reads", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "plans",
        sa.Column("run_id", sa.Integer(), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "records",
        sa.Column("run_id", sa.Integer(), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("plan_index", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("request_class", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("http_status", sa.Integer(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("planned_input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("planned_output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=True),
        sa.Column("intended_at_ns", sa.BigInteger(), nullable=False),
        sa.Column("dispatched_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("connect_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("resolved_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("tcp_connected_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("connected_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("sent_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("headers_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("first_byte_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("first_event_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("first_token_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("first_answer_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("last_token_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("done_at_ns", sa.BigInteger(), nullable=True),
        sa.Column("tpot_ns", sa.BigInteger(), nullable=True),
        sa.Column("max_gap_ns", sa.BigInteger(), nullable=True),
        sa.Column("token_events", sa.Integer(), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("body_bytes", sa.BigInteger(), nullable=False),
        sa.Column("merged_reads", sa.Integer(), nullable=False),
        sa.Column("stamp_source", sa.Text(), nullable=True),
        sa.Column("retries", sa.Integer(), nullable=False),
        sa.Column("retry_after_s", sa.Float(), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("server_timing", sa.Text(), nullable=True),
        sa.Column("warnings", sa.Text(), nullable=True),
        sa.Column("arrivals", sa.LargeBinary(), nullable=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "verdicts",
        sa.Column("run_id", sa.Integer(), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("position", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("request_class", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("observed", sa.Float(), nullable=True),
        sa.Column("bound", sa.Float(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("attainment", sa.Float(), nullable=True),
        sa.Column("interval_low", sa.Float(), nullable=True),
        sa.Column("interval_high", sa.Float(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
    )
    op.create_index("ix_runs_started", "runs", ["started_at_ns"])
    op.execute("INSERT INTO schema_info (version) VALUES (1)")
