"""A leaderboard as Every Eval Ever records (schema 0.3.0, evalevalai.com): one JSON object per model.

What the schema has no field for (rank range, acquired share, kind of interval) goes into its free details,
whose values are all text. Amounts that are not known are left out, not guessed.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from pathlib import Path
from typing import Any

from agent.leaderboard import COMPLETE, INTERVAL_WORDS, Leaderboard, LeaderboardRow
from agent.text import printable
from assay import __version__

__all__ = ["SCHEMA_VERSION", "records", "write_records"]

SCHEMA_VERSION = "0.3.0"
UNKNOWN_DEVELOPER = "unknown"


def records(board: Leaderboard, organization: str = "unknown") -> list[dict[str, Any]]:
    """One aggregate record per row of the leaderboard.

    Args:
        board: The leaderboard.
        organization: Who ran the evaluation (`source_organization_name`).
    """
    return [_record(board, row, organization) for row in board.rows]


def write_records(board: Leaderboard, folder: Path, organization: str = "unknown") -> list[Path]:
    """Write the records as `data/BENCHMARK/DEVELOPER/MODEL/UUID.json` below a folder, as that project does.

    The UUID is made from the content, so that the same leaderboard is written to the same files.
    """
    written = []
    for record in records(board, organization):
        content = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        developer, _, model = record["model_info"]["id"].rpartition("/")
        place = folder.joinpath(
            "data", *map(_file_name, (board.benchmark, developer or UNKNOWN_DEVELOPER, model))
        )
        place.mkdir(parents=True, exist_ok=True)
        stable = {key: value for key, value in record.items() if key != "retrieved_timestamp"}
        digest = hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).digest()
        path = place / f"{uuid.UUID(bytes=digest[:16], version=4)}.json"
        path.write_text(content, encoding="utf-8")
        written.append(path)
    return written


def _file_name(name: str) -> str:
    """A folder's name on any system; never one that leads elsewhere."""
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name)[:100].strip(".") or "_"


def _record(board: Leaderboard, row: LeaderboardRow, organization: str) -> dict[str, Any]:
    retrieved = str(int(board.built_at.timestamp()))
    estimated = row.estimated_at or board.built_at
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": f"{board.benchmark}/{row.method}/{int(estimated.timestamp())}",
        "evaluation_timestamp": estimated.isoformat(),
        "retrieved_timestamp": retrieved,
        "source_metadata": {
            "source_name": f"Assay leaderboard {board.benchmark}",
            "source_type": "evaluation_run",
            "source_organization_name": organization,
            "evaluator_relationship": "third_party",
        },
        "eval_library": {"name": "assay", "version": __version__},
        "model_info": _model(row),
        "evaluation_results": [_result(board, row)],
    }


def _model(row: LeaderboardRow) -> dict[str, Any]:
    developer = row.model.partition("/")[0] if "/" in row.model else UNKNOWN_DEVELOPER
    return {
        "name": row.method,
        "id": row.method,
        "developer": developer,
        "additional_details": {
            "deployment_type": "unknown",
            "model_availability": "unknown",
            "registered_model": row.model,
        },
    }


def _result(board: Leaderboard, row: LeaderboardRow) -> dict[str, Any]:
    words = INTERVAL_WORDS.get(row.interval_kind, row.interval_kind)
    return {
        "evaluation_name": board.benchmark,
        "source_data": {
            "dataset_name": board.benchmark,
            "source_type": "other",
            "additional_details": {
                "datasets": json.dumps(list(board.datasets)),
                "prompts": str(board.prompts),
            },
        },
        "metric_config": {
            "metric_id": "benchmark_score",
            "metric_name": "benchmark score",
            "evaluation_description": "Weighted mean of the prompts' scores, datasets by their weights",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": 1.0,
        },
        "score_details": {
            "score": row.score,
            "uncertainty": {
                "standard_error": {"value": row.std, "method": words},
                "confidence_interval": {
                    "lower": row.low,
                    "upper": row.high,
                    "confidence_level": row.level,
                    "method": words,
                },
                "num_samples": row.acquired,
            },
            "details": _details(row),
        },
    }


def _details(row: LeaderboardRow) -> dict[str, str]:
    facts = {
        "estimated": "no" if row.interval_kind == COMPLETE else "yes",
        "interval_kind": row.interval_kind,
        "prompts_total": str(row.total),
        "prompts_with_a_score": str(row.acquired),
        "rank": str(row.rank),
        "rank_best": str(row.rank_best),
        "rank_worst": str(row.rank_worst),
        "cost_usd": f"{row.cost / 1e6:.6f}",
        "estimator": row.estimator,
        "estimator_version": "" if row.version_id is None else str(row.version_id),
        "stale": "yes" if row.stale else "no",
    }
    return {key: printable(value) for key, value in facts.items() if value}
