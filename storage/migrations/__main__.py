"""Write a migration from what changed in storage/tables.py: `python -m storage.migrations "what changed"`.

With --first, the first migration is written anew instead; only while no database of value exists.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from alembic import command

from storage import migrations
from storage.database import Database

FOLDER = Path(__file__).parent / "versions"


def main() -> None:
    """Generate the migration; look it over and run `ruff format` afterwards."""
    parser = argparse.ArgumentParser(prog="python -m storage.migrations", description=__doc__)
    parser.add_argument("message", nargs="?", default="Create all tables")
    parser.add_argument("--first", action="store_true", help="replace all migrations by a new first one")
    arguments = parser.parse_args()
    if arguments.first:
        for old in FOLDER.glob("*.py"):
            old.unlink()
    number = f"{1 + len(list(FOLDER.glob('*.py'))):04d}"
    with tempfile.TemporaryDirectory() as folder:
        db = Database(f"sqlite:///{folder}/empty.db")
        if not arguments.first:
            db.upgrade()
        _generate(db, arguments.message, number)
        db.close()


def _generate(db: Database, message: str, number: str) -> None:
    with db.engine.connect() as connection:
        settings = migrations.config(connection)
        settings.set_main_option("file_template", "%%(rev)s_%%(slug)s")
        command.revision(settings, message, autogenerate=True, rev_id=number)
    written = next(FOLDER.glob(f"{number}_*.py"))
    lines = written.read_text(encoding="utf-8").splitlines(keepends=True)
    written.write_text("".join(line for line in lines if "# ###" not in line), encoding="utf-8")


if __name__ == "__main__":
    main()
