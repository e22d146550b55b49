"""The formats that scores are imported from, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from assay.errors import BadInputError, UsageError
from assay.matrix_folder import Weighting
from assay.plugins import Registry
from storage.database import Database
from storage.importing._alpaca_eval import import_alpaca_eval
from storage.importing._helm import read_helm
from storage.importing._inspect import read_inspect
from storage.importing._lm_eval import read_lm_eval
from storage.importing._long_table import import_long_table
from storage.importing._matrix_folder import import_matrix_folder
from storage.importing._rows import import_rows
from storage.importing._store import ImportReport

__all__ = ["IMPORTERS", "ImportOptions", "format_of", "import_path"]


@dataclass(frozen=True)
class ImportOptions:
    """What a user may say about a file, for what it does not say itself.

    Attributes:
        rows: "all", or a value of the split column (matrix folders).
        weighting: "dataset" gives a new dataset weight 1, "prompt" weighs datasets by their size.
        model: The model's name, where the file does not name it.
        dataset: The dataset's name, instead of the file's own.
        metric: Which of several scores of a row; default the first known one.
        filter: Which of several filters of the same answer (lm-eval); default the first one in the file.
    """

    rows: str = "all"
    weighting: Weighting = "dataset"
    model: str | None = None
    dataset: str | None = None
    metric: str | None = None
    filter: str | None = None


Importer = Callable[[Database, Path, str, ImportOptions], ImportReport]


def _matrix(db: Database, path: Path, benchmark: str, options: ImportOptions) -> ImportReport:
    return import_matrix_folder(db, path, benchmark, rows=options.rows, weighting=options.weighting)


def _table(db: Database, path: Path, benchmark: str, options: ImportOptions) -> ImportReport:
    return import_long_table(db, path, benchmark, weighting=options.weighting)


def _lm_eval(db: Database, path: Path, benchmark: str, options: ImportOptions) -> ImportReport:
    rows = read_lm_eval(
        path, model=options.model, dataset=options.dataset, metric=options.metric, wanted=options.filter
    )
    return import_rows(db, rows, benchmark, weighting=options.weighting)


def _inspect(db: Database, path: Path, benchmark: str, options: ImportOptions) -> ImportReport:
    rows = read_inspect(path, model=options.model, dataset=options.dataset, scorer=options.metric)
    return import_rows(db, rows, benchmark, weighting=options.weighting)


def _alpaca_eval(db: Database, path: Path, benchmark: str, options: ImportOptions) -> ImportReport:
    return import_alpaca_eval(db, path, benchmark, dataset=options.dataset, weighting=options.weighting)


def _helm(db: Database, path: Path, benchmark: str, options: ImportOptions) -> ImportReport:
    rows = read_helm(path, model=options.model, dataset=options.dataset, metric=options.metric)
    return import_rows(db, rows, benchmark, weighting=options.weighting)


HERE = "storage.importing._formats"
IMPORTERS: Registry[Importer] = Registry(
    "format",
    "assay.importers",
    {
        "alpaca-eval": f"{HERE}:_alpaca_eval",
        "helm": f"{HERE}:_helm",
        "inspect": f"{HERE}:_inspect",
        "lm-eval": f"{HERE}:_lm_eval",
        "long-table": f"{HERE}:_table",
        "matrix": f"{HERE}:_matrix",
    },
)

ENDINGS = {
    ".csv": "long-table",
    ".parquet": "long-table",
    ".eval": "inspect",
    ".jsonl": "lm-eval",
    ".json": "alpaca-eval",
}
SIGNS = (
    ("scores.npz", "matrix"),
    ("run_spec.json", "helm"),
    ("samples_*.jsonl", "lm-eval"),
    ("*.eval", "inspect"),
)


def format_of(path: Path) -> str:
    """The format that a file's ending or a folder's content shows.

    Raises:
        BadInputError: There is nothing at the path.
        UsageError: It shows none.
    """
    if not path.exists():
        raise BadInputError(f"no {'file' if path.suffix else 'folder'} at {path}", "check the path")
    if path.is_file() and path.suffix.lower() in ENDINGS:
        return ENDINGS[path.suffix.lower()]
    if path.is_dir():
        for pattern, name in SIGNS:
            if next(path.rglob(pattern), None) is not None:
                return name
    raise UsageError(
        f"{path.name} does not show its format", f"name it with --format: {', '.join(IMPORTERS.names())}"
    )


def import_path(
    db: Database, path: Path | str, benchmark: str, options: ImportOptions, *, kind: str = "auto"
) -> ImportReport:
    """Import a file or folder: everything, or nothing where anything is wrong.

    Args:
        db: The database.
        path: The file or folder.
        benchmark: The benchmark; made where there is none.
        options: What the file does not say itself.
        kind: A name of `IMPORTERS`, or "auto" to look at the file.

    Raises:
        BadInputError: It cannot be read, or contradicts itself or what is stored.
        UsageError: The format is unknown or not shown, or an option does not fit it.
        StorageError: The database cannot be used.
    """
    name = format_of(Path(path)) if kind == "auto" else kind
    if options.rows != "all" and name != "matrix":
        raise UsageError("--rows chooses rows of a matrix folder", f"leave it out for the format {name}")
    return IMPORTERS.get(name)(db, Path(path), benchmark, options)
