"""Create all tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "apitoken",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "benchmark",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("prompts_revision", sa.Integer(), nullable=False),
        sa.Column("ranking", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "budget",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("scope_id", sa.Integer(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("period", sa.String(), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cap", sa.BigInteger(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.Column("warned", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("scope", "scope_id", "unit", "period"),
    )
    op.create_table(
        "embedding",
        sa.Column("content_hash", sa.String(), nullable=False),
        sa.Column("encoder", sa.String(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("content_hash", "encoder"),
    )
    op.create_table(
        "endpoint",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("key", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("handled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key"),
    )
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_event_handled_at"), ["handled_at"], unique=False)

    op.create_table(
        "model",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("backend", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("attributes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "score",
        sa.Column("dataset_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("scorer_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("method_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("prompt_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("dataset_id", "scorer_id", "method_id", "prompt_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "scorer",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("identity", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("identity"),
    )
    op.create_table(
        "template",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "watcheditem",
        sa.Column("watcher", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("watcher", "key"),
    )
    op.create_table(
        "dataset",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("benchmark_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("score_type", sa.String(), nullable=False),
        sa.Column("scorer_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["benchmark_id"],
            ["benchmark.id"],
        ),
        sa.ForeignKeyConstraint(
            ["scorer_id"],
            ["scorer.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("benchmark_id", "name"),
    )
    op.create_table(
        "estimatorversion",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("benchmark_id", sa.Integer(), nullable=False),
        sa.Column("estimator", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("parent_id", sa.Integer(), nullable=True),
        sa.Column("prompts_revision", sa.Integer(), nullable=False),
        sa.Column("history", sa.JSON(), nullable=False),
        sa.Column("validation", sa.JSON(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("trained_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["benchmark_id"],
            ["benchmark.id"],
        ),
        sa.ForeignKeyConstraint(
            ["parent_id"],
            ["estimatorversion.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("estimatorversion", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_estimatorversion_benchmark_id"), ["benchmark_id"], unique=False)

    op.create_table(
        "method",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("template_id", sa.Integer(), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("parameters_hash", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["model_id"],
            ["model.id"],
        ),
        sa.ForeignKeyConstraint(
            ["template_id"],
            ["template.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("model_id", "template_id", "parameters_hash"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "notification",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("event_id", sa.Integer(), nullable=True),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("message", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("lease_owner", sa.String(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["event_id"],
            ["event.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("event_id", "target"),
    )
    with op.batch_alter_table("notification", schema=None) as batch_op:
        batch_op.create_index("notifications_by_state", ["state", "id"], unique=False)

    op.create_table(
        "artifact",
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["estimatorversion.id"],
        ),
        sa.PrimaryKeyConstraint("version_id", "name"),
    )
    op.create_table(
        "prompt",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("dataset_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("content_hash", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("fields", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset_id"],
            ["dataset.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("dataset_id", "key"),
    )
    with op.batch_alter_table("prompt", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_prompt_content_hash"), ["content_hash"], unique=False)

    op.create_table(
        "study",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("objective", sa.String(), nullable=False),
        sa.Column("benchmark_id", sa.Integer(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("policy_params", sa.JSON(), nullable=False),
        sa.Column("estimator", sa.String(), nullable=False),
        sa.Column("estimator_params", sa.JSON(), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=True),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("level", sa.Float(), nullable=False),
        sa.Column("max_prompts", sa.Integer(), nullable=True),
        sa.Column("until_width", sa.Float(), nullable=True),
        sa.Column("until_confidence", sa.Float(), nullable=True),
        sa.Column("quantiles", sa.JSON(), nullable=False),
        sa.Column("templates", sa.JSON(), nullable=False),
        sa.Column("scorer_id", sa.Integer(), nullable=True),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("waits_budget_id", sa.Integer(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("trigger", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["benchmark_id"],
            ["benchmark.id"],
        ),
        sa.ForeignKeyConstraint(
            ["scorer_id"],
            ["scorer.id"],
        ),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["estimatorversion.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("trigger"),
    )
    with op.batch_alter_table("study", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_study_benchmark_id"), ["benchmark_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_study_state"), ["state"], unique=False)

    op.create_table(
        "estimate",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("benchmark_id", sa.Integer(), nullable=False),
        sa.Column("method_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("score", sa.Float(), nullable=False),
        sa.Column("std", sa.Float(), nullable=False),
        sa.Column("low", sa.Float(), nullable=False),
        sa.Column("high", sa.Float(), nullable=False),
        sa.Column("level", sa.Float(), nullable=False),
        sa.Column("interval_kind", sa.String(), nullable=False),
        sa.Column("acquired", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.Column("probability_best", sa.Float(), nullable=True),
        sa.Column("version_id", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["benchmark_id"],
            ["benchmark.id"],
        ),
        sa.ForeignKeyConstraint(
            ["method_id"],
            ["method.id"],
        ),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["study.id"],
        ),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["estimatorversion.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("study_id", "method_id", "step"),
    )
    with op.batch_alter_table("estimate", schema=None) as batch_op:
        batch_op.create_index("estimates_by_method", ["benchmark_id", "method_id"], unique=False)

    op.create_table(
        "job",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("method_id", sa.Integer(), nullable=False),
        sa.Column("prompt_id", sa.Integer(), nullable=False),
        sa.Column("scorer_id", sa.Integer(), nullable=False),
        sa.Column("other_method_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dispatched_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("gain", sa.Float(), nullable=True),
        sa.Column("probability", sa.Float(), nullable=True),
        sa.Column("expected_cost", sa.BigInteger(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("bill", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["method_id"],
            ["method.id"],
        ),
        sa.ForeignKeyConstraint(
            ["prompt_id"],
            ["prompt.id"],
        ),
        sa.ForeignKeyConstraint(
            ["scorer_id"],
            ["scorer.id"],
        ),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["study.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("job", schema=None) as batch_op:
        batch_op.create_index("jobs_by_state", ["state", "lease_until"], unique=False)
        batch_op.create_index("jobs_by_study", ["study_id", "state"], unique=False)
        batch_op.create_index(
            "one_open_job_per_cell",
            ["method_id", "prompt_id", "scorer_id", "other_method_id"],
            unique=True,
            sqlite_where=sa.text("state IN ('queued', 'leased')"),
            postgresql_where=sa.text("state IN ('queued', 'leased')"),
        )

    op.create_table(
        "output",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("method_id", sa.Integer(), nullable=False),
        sa.Column("prompt_id", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("finish_reason", sa.String(), nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("latency_ms", sa.Float(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["method_id"],
            ["method.id"],
        ),
        sa.ForeignKeyConstraint(
            ["prompt_id"],
            ["prompt.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("method_id", "prompt_id"),
    )
    op.create_table(
        "preference",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("method_a_id", sa.Integer(), nullable=False),
        sa.Column("method_b_id", sa.Integer(), nullable=False),
        sa.Column("prompt_id", sa.Integer(), nullable=False),
        sa.Column("scorer_id", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["method_a_id"],
            ["method.id"],
        ),
        sa.ForeignKeyConstraint(
            ["method_b_id"],
            ["method.id"],
        ),
        sa.ForeignKeyConstraint(
            ["prompt_id"],
            ["prompt.id"],
        ),
        sa.ForeignKeyConstraint(
            ["scorer_id"],
            ["scorer.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("method_a_id", "method_b_id", "prompt_id", "scorer_id"),
    )
    op.create_table(
        "quantile",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("benchmark_id", sa.Integer(), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("low", sa.Float(), nullable=False),
        sa.Column("high", sa.Float(), nullable=False),
        sa.Column("level", sa.Float(), nullable=False),
        sa.Column("interval_kind", sa.String(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("acquired", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["benchmark_id"],
            ["benchmark.id"],
        ),
        sa.ForeignKeyConstraint(
            ["model_id"],
            ["model.id"],
        ),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["study.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("study_id", "step", "at"),
    )
    with op.batch_alter_table("quantile", schema=None) as batch_op:
        batch_op.create_index("quantiles_by_model", ["benchmark_id", "model_id"], unique=False)

    op.create_table(
        "sheetrow",
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("method_a_id", sa.Integer(), nullable=False),
        sa.Column("method_b_id", sa.Integer(), nullable=False),
        sa.Column("prompt_id", sa.Integer(), nullable=False),
        sa.Column("a_first", sa.Boolean(), nullable=False),
        sa.Column("skipped", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["method_a_id"],
            ["method.id"],
        ),
        sa.ForeignKeyConstraint(
            ["method_b_id"],
            ["method.id"],
        ),
        sa.ForeignKeyConstraint(
            ["prompt_id"],
            ["prompt.id"],
        ),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["study.id"],
        ),
        sa.PrimaryKeyConstraint("token"),
        sa.UniqueConstraint("study_id", "method_a_id", "method_b_id", "prompt_id"),
    )
    op.create_table(
        "studymethod",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("method_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["method_id"],
            ["method.id"],
        ),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["study.id"],
        ),
        sa.PrimaryKeyConstraint("study_id", "method_id"),
    )
    with op.batch_alter_table("studymethod", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_studymethod_method_id"), ["method_id"], unique=False)

    op.create_table(
        "attempt",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("unsure", sa.Boolean(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["job.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_attempt_job_id"), ["job_id"], unique=False)

    op.create_table(
        "ledgerentry",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("budget_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("settled", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("settled_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["budget_id"],
            ["budget.id"],
        ),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["job.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "budget_id"),
    )
    with op.batch_alter_table("ledgerentry", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_ledgerentry_budget_id"), ["budget_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("ledgerentry", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_ledgerentry_budget_id"))

    op.drop_table("ledgerentry")
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_attempt_job_id"))

    op.drop_table("attempt")
    with op.batch_alter_table("studymethod", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_studymethod_method_id"))

    op.drop_table("studymethod")
    op.drop_table("sheetrow")
    with op.batch_alter_table("quantile", schema=None) as batch_op:
        batch_op.drop_index("quantiles_by_model")

    op.drop_table("quantile")
    op.drop_table("preference")
    op.drop_table("output")
    with op.batch_alter_table("job", schema=None) as batch_op:
        batch_op.drop_index(
            "one_open_job_per_cell",
            sqlite_where=sa.text("state IN ('queued', 'leased')"),
            postgresql_where=sa.text("state IN ('queued', 'leased')"),
        )
        batch_op.drop_index("jobs_by_study")
        batch_op.drop_index("jobs_by_state")

    op.drop_table("job")
    with op.batch_alter_table("estimate", schema=None) as batch_op:
        batch_op.drop_index("estimates_by_method")

    op.drop_table("estimate")
    with op.batch_alter_table("study", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_study_state"))
        batch_op.drop_index(batch_op.f("ix_study_benchmark_id"))

    op.drop_table("study")
    with op.batch_alter_table("prompt", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_prompt_content_hash"))

    op.drop_table("prompt")
    op.drop_table("artifact")
    with op.batch_alter_table("notification", schema=None) as batch_op:
        batch_op.drop_index("notifications_by_state")

    op.drop_table("notification")
    op.drop_table("method")
    with op.batch_alter_table("estimatorversion", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_estimatorversion_benchmark_id"))

    op.drop_table("estimatorversion")
    op.drop_table("dataset")
    op.drop_table("watcheditem")
    op.drop_table("template")
    op.drop_table("scorer")
    op.drop_table("score")
    op.drop_table("model")
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_event_handled_at"))

    op.drop_table("event")
    op.drop_table("endpoint")
    op.drop_table("embedding")
    op.drop_table("budget")
    op.drop_table("benchmark")
    op.drop_table("apitoken")
