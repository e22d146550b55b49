"""Import of score matrices: each file or folder whole or not at all, and as often as one likes."""

from storage.importing._formats import IMPORTERS, ImportOptions, format_of, import_path
from storage.importing._long_table import import_long_table
from storage.importing._matrix_folder import import_matrix_folder
from storage.importing._rows import Rows, import_lines, import_rows
from storage.importing._store import ImportReport

__all__ = [
    "IMPORTERS",
    "ImportOptions",
    "ImportReport",
    "Rows",
    "format_of",
    "import_lines",
    "import_long_table",
    "import_matrix_folder",
    "import_path",
    "import_rows",
]
