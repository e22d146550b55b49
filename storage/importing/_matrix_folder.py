"""Import of a matrix folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix_folder import MatrixFolder, Weighting, read_matrix_folder
from storage.database import Database
from storage.importing._store import ImportReport, Incoming, IncomingOutput, check_weighting, store

__all__ = ["import_matrix_folder"]


def import_matrix_folder(
    db: Database,
    path: Path | str,
    benchmark_name: str,
    *,
    rows: str = "all",
    weighting: Weighting = "dataset",
) -> ImportReport:
    """Import a matrix folder into a benchmark: everything, or nothing where anything is wrong.

    Importing the same folder again changes nothing. Models that are new cannot be called (backend
    "imported"); the other columns of models.csv become their attributes.

    Args:
        db: The database.
        path: The folder.
        benchmark_name: The benchmark; made where there is none.
        rows: "all", or the rows whose column `split` says so ("train"; all where there is no such column).
        weighting: "dataset" gives a new dataset weight 1, "prompt" weighs the folder's datasets by their
            number of prompts.

    Raises:
        BadInputError: A file cannot be read, or contradicts what is stored.
        StorageError: The database cannot be used.
    """
    check_weighting(weighting)
    folder = read_matrix_folder(path)
    picked = _picked(folder, rows)
    matrix = folder.matrix
    values = matrix.values[picked]
    score_models, score_prompts = np.nonzero(~np.isnan(values))
    incoming = Incoming(
        path=folder.path,
        models={
            folder.models[i]["model"]: {k: v for k, v in folder.models[i].items() if k != "model" and v}
            for i in picked.tolist()
        },
        datasets=matrix.datasets,
        score_types=matrix.score_types,
        prompt_keys=matrix.prompt_ids,
        prompt_texts=folder.texts,
        prompt_datasets=matrix.dataset_index,
        score_models=score_models,
        score_prompts=score_prompts,
        values=values[score_models, score_prompts].astype(np.float64),
        outputs=_outputs(folder, picked),
        weights=folder.weights,
        rows=matrix.n_methods,
        reasons={f"split is not '{rows}'": left} if (left := matrix.n_methods - len(picked)) else {},
    )
    return store(db, incoming, benchmark_name, weighting)


def _picked(folder: MatrixFolder, rows: str) -> NDArray[np.intp]:
    if rows == "all":
        return np.arange(folder.matrix.n_methods)
    picked = folder.split(rows)
    if not len(picked):
        splits = sorted({model["split"] for model in folder.models if model.get("split")})
        raise BadInputError(
            f"{folder.path / 'models.csv'}: no row has split '{rows}'", f"use all or: {', '.join(splits)}"
        )
    return picked


def _outputs(folder: MatrixFolder, picked: NDArray[np.intp]) -> Iterator[IncomingOutput]:
    answers = folder.outputs()
    for row, i in enumerate(picked.tolist()):
        for column, text in enumerate(answers.get(folder.matrix.method_ids[i], ())):
            if text is not None:
                yield IncomingOutput(row, column, text, {})
