"""People as judges: blinded sheets out, verdicts in.

A sheet is CSV or JSON lines with the columns id, prompt, answer_1, answer_2 and verdict. Which method gave
which answer is known to the database alone; the order is drawn for each row. A person fills in verdict: 1,
2, tie, or skip where there is nothing to say.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sqlmodel import Session, col, select

from agent.pairwise._reading import PEOPLE
from assay.errors import BadInputError, UsageError
from storage import sheets, studies
from storage.events import emit
from storage.preferences import PreferenceRow, add_preferences, known_preferences
from storage.tables import Origin, Prompt, Scorer, SheetRow
from workers.work import known_answers

__all__ = ["VERDICTS", "ask_people", "read_sheet", "write_sheet"]

FIELDS = ("id", "prompt", "answer_1", "answer_2", "verdict")
VERDICTS = {"1": 1.0, "2": 0.0, "tie": 0.5, "skip": None}


def ask_people(session: Session, study_id: int, seed: int, cells: list[tuple[int, int, int]]) -> int:
    """Put cells on the study's sheet, each in a drawn order; returns how many are new."""
    drawn = np.random.default_rng([seed, study_id, len(sheets.rows_of(session, study_id))])
    return sheets.add_rows(session, study_id, cells, [bool(x) for x in drawn.integers(0, 2, len(cells))])


def write_sheet(session: Session, study_id: int, path: Path) -> int:
    """Write the rows that wait for a verdict, JSON lines where the name ends so, else CSV; returns how many.

    Raises:
        UsageError: The study is not judged by people.
    """
    scorer = _people(session, study_id)
    rows = list(_shown(session, study_id, scorer))
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return len(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def _people(session: Session, study_id: int) -> Scorer:
    study = studies.find(session, study_id)
    scorer = None if study.scorer_id is None else session.get(Scorer, study.scorer_id)
    if scorer is None or scorer.name != PEOPLE:
        raise UsageError(
            f"study {study_id} is not judged by people",
            "create one with: assay study create --objective compare --judge people",
        )
    return scorer


def _shown(session: Session, study_id: int, scorer: Scorer) -> Iterator[dict[str, str]]:
    waiting = [row for row in sheets.rows_of(session, study_id) if not row.skipped]
    ids = {row.method_a_id for row in waiting} | {row.method_b_id for row in waiting}
    known = known_preferences(session, [scorer.id or 0], sorted(ids))
    judged = {(one.method_a_id, one.method_b_id, one.prompt_id) for one in known}
    waiting = [row for row in waiting if (row.method_a_id, row.method_b_id, row.prompt_id) not in judged]
    prompts = _prompts(session, {row.prompt_id for row in waiting})
    answers = known_answers(session, sorted(ids), prompts.values())
    for row in waiting:
        prompt = prompts[row.prompt_id]
        texts = [answers[method, prompt.content_hash].text for method in (row.method_a_id, row.method_b_id)]
        first, second = texts if row.a_first else reversed(texts)
        yield {"id": row.token, "prompt": prompt.text, "answer_1": first, "answer_2": second, "verdict": ""}


def _prompts(session: Session, ids: set[int]) -> dict[int, Prompt]:
    found = session.exec(select(Prompt).where(col(Prompt.id).in_(sorted(ids)))).all()
    return {int(one.id or 0): one for one in found}


def read_sheet(session: Session, study_id: int, path: Path) -> dict[str, int]:
    """Store the verdicts of a filled-in sheet, all of them or none; rows without a verdict are left waiting.

    Returns:
        How many were stored, skipped, left empty, and known before.

    Raises:
        UsageError: The study is not judged by people.
        BadInputError: A row is wrong; the message names its line.
    """
    scorer = _people(session, study_id)
    rows = sheets.by_token(session, study_id)
    given = _checked(path, rows)
    counts = {"stored": 0, "skipped": 0, "empty": 0, "known": 0}
    known = {
        (one.method_a_id, one.method_b_id, one.prompt_id)
        for one in known_preferences(
            session, [scorer.id or 0], [i for r in rows.values() for i in (r.method_a_id, r.method_b_id)]
        )
    }
    fresh = []
    for token, verdict in given.items():
        row = rows[token]
        if verdict == "":
            counts["empty"] += 1
        elif verdict == "skip":
            row.skipped = True
            session.add(row)
            counts["skipped"] += 1
        elif (row.method_a_id, row.method_b_id, row.prompt_id) in known:
            counts["known"] += 1
        else:
            fresh.append(_preference(row, scorer, verdict))
            counts["stored"] += 1
    add_preferences(session, fresh)
    if fresh or counts["skipped"]:
        emit(
            session, "jobs.finished", {"study_id": study_id, "done": len(fresh), "parked": counts["skipped"]}
        )
    return counts


def _preference(row: SheetRow, scorer: Scorer, verdict: str) -> PreferenceRow:
    vote = VERDICTS[verdict]
    assert vote is not None
    return PreferenceRow(
        row.method_a_id,
        row.method_b_id,
        row.prompt_id,
        scorer.id or 0,
        vote if row.a_first else 1.0 - vote,
        Origin.IMPORTED,
        {"votes": [vote if row.a_first else 1.0 - vote], "sheet": row.token},
    )


def _checked(path: Path, rows: dict[str, SheetRow]) -> dict[str, str]:
    """Verdict by token; every line is checked before anything is stored."""
    given: dict[str, str] = {}
    for number, row in _lines(path):
        place = f"{path.name}, line {number}"
        token, verdict = str(row.get("id") or ""), str(row.get("verdict") or "").strip().lower()
        if token not in rows:
            raise BadInputError(
                f"{place}: id '{token}' is not on this study's sheet", "keep the column id as it is"
            )
        if token in given:
            raise BadInputError(f"{place}: id '{token}' occurs twice", "give each pair one verdict")
        if verdict and verdict not in VERDICTS:
            raise BadInputError(
                f"{place}: verdict '{verdict}' is not one of {', '.join(VERDICTS)}",
                "1 = answer_1 is better, 2 = answer_2, tie, skip, or leave it empty",
            )
        given[token] = verdict
    return given


def _lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Line number and content of each row."""
    try:
        if path.suffix == ".jsonl":
            yield from _json_lines(path)
            return
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not {"id", "verdict"} <= set(reader.fieldnames or ()):
                raise BadInputError(f"{path.name}, line 1: needs the columns id and verdict")
            for row in reader:
                yield reader.line_num, dict(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(f"{path.name} cannot be read: {error}") from None


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise BadInputError(f"{path.name}, line {number}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise BadInputError(f"{path.name}, line {number}: expected a JSON object")
            yield number, row
