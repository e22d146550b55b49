"""Import of a long table: one row per score, as CSV or Parquet."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import ScoreType
from assay.matrix_folder import Weighting
from storage.database import Database
from storage.importing._store import ImportReport, Incoming, IncomingOutput, check_weighting, store

__all__ = ["Table", "import_long_table", "incoming_of"]

REQUIRED = ("model", "dataset", "prompt_id", "score")
OPTIONAL = ("prompt", "output", "cost")
LAYOUT = f"a long table has the columns {', '.join(REQUIRED)} and may have {', '.join(OPTIONAL)}"


def import_long_table(
    db: Database, path: Path | str, benchmark_name: str, *, weighting: Weighting = "dataset"
) -> ImportReport:
    """Import a CSV or Parquet file with one score per row: everything, or nothing where anything is wrong.

    Columns: model, dataset, prompt_id, score (in [0, 1]) and, where there are any, prompt (text), output
    (text) and cost (US dollars of the output). Importing the same file again changes nothing.

    Args:
        db: The database.
        path: The file; its name ends in .csv or .parquet.
        benchmark_name: The benchmark; made where there is none.
        weighting: "dataset" gives a new dataset weight 1, "prompt" weighs the file's datasets by their number
            of prompts.

    Raises:
        BadInputError: The file cannot be read, or contradicts itself or what is stored; the message names the
            file, the line (CSV) or row (Parquet), and the column.
        StorageError: The database cannot be used.
    """
    check_weighting(weighting)
    return store(db, incoming_of(_read(Path(path))), benchmark_name, weighting)


# --- reading -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Codes:
    """A text column as (n,) codes into its distinct values, in order of first appearance."""

    codes: NDArray[np.int64]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A file's columns, with a way to say where in the file a row is."""

    path: Path
    columns: Any  # pa.Table
    places: Sequence[str] | None = None  # of each row, where the reader knows better

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def has(self, name: str) -> bool:
        return name in self.columns.column_names

    def place(self, row: int) -> str:
        """The file and the line or row (the first data row is row 1)."""
        if self.places is not None:
            return f"{self.path}, {self.places[row]}"
        line = _csv_line(self.path, row) if self.path.suffix.lower() == ".csv" else None
        return f"{self.path}, row {row + 1}" if line is None else f"{self.path}, line {line}"

    def texts(self, name: str) -> Any:
        """A column as Arrow text; nulls stay nulls."""
        column = self.columns.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        try:
            return column.cast(pa.large_string()).combine_chunks()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise BadInputError(f"{self.path}, column '{name}': expected text, got {column.type}") from None

    def required(self, name: str) -> _Codes:
        """A text column in which every row must say something."""
        column = self.texts(name)
        encoded = column.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        blank = pc.is_null(column).to_numpy(zero_copy_only=False)
        if "" in names:
            blank = blank | (encoded.indices.to_numpy(zero_copy_only=False) == names.index(""))
        if blank.any():
            raise BadInputError(f"{self.place(int(np.argmax(blank)))}, column '{name}': empty")
        return _Codes(encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), tuple(names))

    def optional(self, name: str) -> _Codes:
        """A text column in which "" stands for nothing said; all empty where the column is absent."""
        if not self.has(name):
            return _Codes(np.zeros(len(self), dtype=np.int64), ("",))
        encoded = pc.fill_null(self.texts(name), "").dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return _Codes(codes, tuple(encoded.dictionary.to_pylist()))

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column of numbers; NaN where a row has none."""
        column = self.columns.column(name).combine_chunks()
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
        try:
            numbers = pc.fill_null(column.cast(pa.float64(), safe=False), np.nan)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise self._not_a_number(name, column) from None
        return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)

    def _not_a_number(self, name: str, column: Any) -> BadInputError:
        for row, value in enumerate(column.to_pylist()):
            try:
                pa.scalar(value).cast(pa.float64())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                return BadInputError(f"{self.place(row)}, column '{name}': {value!r} is not a number")
        return BadInputError(f"{self.path}, column '{name}': expected numbers, got {column.type}")


def _read(path: Path) -> Table:
    readers = {".csv": _read_csv, ".parquet": pq.read_table}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise BadInputError(f"{path}: unknown kind of file '{path.suffix}'", "use a .csv or a .parquet file")
    if not path.is_file():
        raise BadInputError(f"no file at {path}", LAYOUT)
    try:
        columns = reader(path)
        names = columns.column_names
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise BadInputError(f"{path} cannot be read: {str(error).splitlines()[0]}", LAYOUT) from None
    for name in (*REQUIRED, *OPTIONAL):
        if names.count(name) > 1 or (name in REQUIRED and name not in names):
            what = "is given twice" if name in names else "is missing"
            raise BadInputError(
                f"{path}: column '{name}' {what}; its columns are: {', '.join(names)}", LAYOUT
            )
    if not columns.num_rows:
        raise BadInputError(f"{path} has no rows", LAYOUT)
    return Table(path, columns)


def _read_csv(path: Path) -> Any:
    """All columns as text, so that ids stay what they are ("007") and a bad number is found by its row."""
    with path.open("rb") as file:
        header = file.readline().decode("utf-8-sig", errors="replace")
    names = next(csv.reader([header]), [])
    return pa_csv.read_csv(
        path,
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )


def _csv_line(path: Path, row: int) -> int | None:
    """The line on which a data row begins: texts may span lines, and empty lines are no rows."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader, begins, seen = csv.reader(file), 1, -1  # the header is row -1
            for record in reader:
                if record and seen == row:
                    return begins
                seen += bool(record)
                begins = reader.line_num + 1
    except csv.Error:  # a text longer than this reader takes
        pass
    return None


# --- checking ----------------------------------------------------------------------------------------------


def incoming_of(
    table: Table,
    skipped: Mapping[str, int] | None = None,
    scorer_params: dict[str, Any] | None = None,
    said: tuple[str, ...] = (),
) -> Incoming:
    """Check a table's content.

    Args:
        table: The scores.
        skipped: Rows that the reader left out already, by reason.
        scorer_params: What else tells these scores apart from others of the same dataset, such as the judge.
        said: Notes of the reader.
    """
    skipped = skipped or {}
    models, datasets, keys = (table.required(name) for name in ("model", "dataset", "prompt_id"))
    values = _scores(table)
    columns, prompts = _prompts(datasets, keys)
    texts = _texts(table, prompts, keys, columns)
    kept = _distinct_cells(table, models, prompts, columns.size, values)
    costs, notes = _costs(table)
    notes += _unused(table)
    return Incoming(
        path=table.path,
        models={name: {} for name in models.names},
        datasets=datasets.names,
        score_types=_score_types(datasets, values),
        prompt_keys=tuple(keys.names[k] for k in keys.codes[columns].tolist()),
        prompt_texts=texts,
        prompt_datasets=datasets.codes[columns].astype(np.intp),
        score_models=models.codes[kept].astype(np.intp),
        score_prompts=prompts[kept].astype(np.intp),
        values=values[kept],
        outputs=_outputs(table, models, prompts, costs),
        rows=len(table) + sum(skipped.values()),
        reasons={**skipped, **_repeated(len(table) - len(kept))},
        notes=(*said, *notes),
        scorer_params=scorer_params or {},
    )


def _repeated(count: int) -> dict[str, int]:
    return {"repeats an earlier row": count} if count else {}


def _scores(table: Table) -> NDArray[np.float64]:
    values = table.numbers("score")
    wrong = ~((values >= 0) & (values <= 1))  # also true of NaN
    if not wrong.any():
        return values
    row = int(np.argmax(wrong))
    place = f"{table.place(row)}, column 'score'"
    if np.isnan(values[row]):
        raise BadInputError(f"{place}: empty or not a number", "leave the row out where there is no score")
    raise BadInputError(f"{place}: {values[row]:g} is outside [0, 1]", "rescale the scores to [0, 1]")


def _prompts(datasets: _Codes, keys: _Codes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The prompts in order of first appearance: (N,) the first row of each, (n,) the prompt of each row."""
    pairs = datasets.codes * len(keys.names) + keys.codes
    _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order].astype(np.int64), rank[inverse].astype(np.int64)


def _texts(
    table: Table, prompts: NDArray[np.int64], keys: _Codes, columns: NDArray[np.int64]
) -> tuple[str, ...]:
    """N prompt texts; rows that say nothing agree with any."""
    column = table.optional("prompt")
    said = np.flatnonzero(np.array([bool(name) for name in column.names])[column.codes])
    code = np.full(len(columns), -1, dtype=np.int64)
    code[prompts[said][::-1]] = column.codes[said][::-1]  # the first row that says something counts
    other = said[code[prompts[said]] != column.codes[said]]
    if len(other):
        row = int(other[0])
        raise BadInputError(
            f"{table.place(row)}, column 'prompt': prompt id '{keys.names[keys.codes[row]]}'"
            " has another text than in an earlier row",
            "give each text its own prompt_id",
        )
    return tuple("" if c < 0 else column.names[c] for c in code.tolist())


def _distinct_cells(
    table: Table, models: _Codes, prompts: NDArray[np.int64], n_prompts: int, values: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Rows to keep: the first of each (model, prompt)."""
    cells = models.codes * n_prompts + prompts
    _, first, inverse = np.unique(cells, return_index=True, return_inverse=True)
    other = np.flatnonzero(values != values[first[inverse]])
    if len(other):
        row = int(other[0])
        raise BadInputError(
            f"{table.place(row)}, column 'score': model '{models.names[models.codes[row]]}' has score"
            f" {values[first[inverse[row]]]:g} on the same prompt in an earlier row, here {values[row]:g}",
            "keep one of the rows",
        )
    return np.sort(first).astype(np.int64)


def _score_types(datasets: _Codes, values: NDArray[np.float64]) -> tuple[ScoreType, ...]:
    graded = np.bincount(datasets.codes, weights=(values != 0) & (values != 1)) > 0
    return tuple(ScoreType.REAL if real else ScoreType.BINARY for real in graded)


def _costs(table: Table) -> tuple[NDArray[np.float64] | None, list[str]]:
    """(n,) US dollars per row, NaN = not given."""
    if not table.has("cost"):
        return None, []
    costs = table.numbers("cost")
    wrong = np.isinf(costs) | (costs < 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BadInputError(f"{table.place(row)}, column 'cost': {costs[row]:g} is not a price in US dollars")
    if not table.has("output"):
        return None, ["column 'cost' is not kept: a cost belongs to an output, and there is no such column"]
    return costs, []


def _unused(table: Table) -> list[str]:
    unused = [name for name in table.columns.column_names if name not in (*REQUIRED, *OPTIONAL)]
    return [f"columns not used: {', '.join(unused)}"] if unused else []


def _outputs(
    table: Table, models: _Codes, prompts: NDArray[np.int64], costs: NDArray[np.float64] | None
) -> Iterator[IncomingOutput]:
    if not table.has("output"):
        return
    for row, text in enumerate(table.texts("output").to_pylist()):
        if text:
            priced = costs is not None and not np.isnan(costs[row])
            details = {"cost_usd": float(costs[row])} if priced and costs is not None else {}
            yield IncomingOutput(int(models.codes[row]), int(prompts[row]), text, details)
