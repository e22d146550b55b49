from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from assay.errors import StorageError
from storage import catalog
from storage.database import Database
from storage.tables import Benchmark, Output, safe_text
from tests.storage.example import small_benchmark


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A SQLite file with all tables."""
    database = Database(f"sqlite:///{tmp_path / 'assay.db'}")
    database.upgrade()
    database.close()
    return tmp_path / "assay.db"


def complaint(database: Database) -> StorageError:
    with pytest.raises(StorageError) as caught, database.begin() as session:
        session.add(Benchmark(name="new"))
    database.close()
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


def test_an_error_rolls_everything_back(db: Database):
    def write_half() -> None:
        with db.begin() as session:
            catalog.add_benchmark(session, "half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    with db.read() as session:
        assert session.connection().execute(text("SELECT count(*) FROM benchmark")).scalar() == 0


def test_a_broken_constraint_stays_an_integrity_error(db: Database):
    with pytest.raises(IntegrityError), db.begin() as session:
        session.add_all([Benchmark(name="same"), Benchmark(name="same")])


def test_a_reading_session_sees_one_snapshot(db: Database):
    small_benchmark(db)
    count = text("SELECT count(*) FROM benchmark")
    with db.read() as session:
        before = session.connection().execute(count).scalar()
        with db.begin() as other:
            catalog.add_benchmark(other, "meanwhile")
        assert session.connection().execute(count).scalar() == before
    with db.read() as session:
        assert session.connection().execute(count).scalar() == before + 1


def test_a_locked_database_is_named(path: Path):
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        error = complaint(Database(f"sqlite:///{path}", busy_timeout_s=0.05))
        assert "is locked by another program" in str(error)
    finally:
        holder.close()


def test_a_read_only_database_is_named(path: Path):
    error = complaint(Database(f"sqlite:///file:{path}?mode=ro&uri=true"))
    assert "is read-only" in str(error)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to every file")
def test_a_file_without_the_right_to_write_is_named(path: Path):
    path.chmod(0o444)
    assert "is read-only" in str(complaint(Database(f"sqlite:///{path}")))


def test_a_bulk_statement_through_the_driver_is_translated_too(path: Path):
    database = Database(f"sqlite:///file:{path}?mode=ro&uri=true")
    with pytest.raises(StorageError, match="is read-only"), database.read() as session:
        session.connection().connection.driver_connection.execute("DELETE FROM score")
    database.close()


def test_a_missing_folder_is_named(tmp_path: Path):
    error = complaint(Database(f"sqlite:///{tmp_path / 'absent' / 'assay.db'}"))
    assert "cannot be opened" in str(error)
    assert "folder" in error.hint


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be made"):
        Database(f"sqlite:///{tmp_path / 'file' / 'assay.db'}").upgrade()


def test_a_file_of_another_kind_is_named(tmp_path: Path):
    (tmp_path / "assay.db").write_text("a text that is long enough to be a database\n" * 20)
    assert "is no SQLite database" in str(complaint(Database(f"sqlite:///{tmp_path / 'assay.db'}")))


def test_missing_tables_name_the_command(tmp_path: Path):
    error = complaint(Database(f"sqlite:///{tmp_path / 'assay.db'}"))
    assert "lacks tables" in str(error)
    assert "assay db upgrade" in error.hint


def test_an_unreachable_server_is_named_without_its_password():
    url = "postgresql://user:secret@127.0.0.1:1/assay"
    error = complaint(Database(url, busy_timeout_s=2))
    assert "cannot be reached" in str(error)
    assert "secret" not in str(error) + error.hint
    assert "start PostgreSQL" in error.hint


@pytest.mark.services
def test_an_absent_postgresql_database_is_named(tmp_path: Path):
    url = os.environ.get("ASSAY_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
    error = complaint(Database(url.rsplit("/", 1)[0] + "/assay_absent"))
    assert "createdb" in error.hint


@pytest.mark.parametrize("url", ["not a url", "mysql://host/name"])
def test_a_useless_url_is_refused(url: str):
    with pytest.raises(StorageError) as caught:
        Database(url)
    assert caught.value.hint


@pytest.mark.parametrize(
    "answer", ["plain", "nul \x00 here", "half a pair \ud83d", "\ud83d\ude00", "\ufeffmark"]
)
def test_any_answer_can_be_stored(db: Database, answer: str):
    example = small_benchmark(db)
    with db.begin() as session:
        session.add(Output(method_id=example.method_ids[0], prompt_id=example.prompt_ids[0], text=answer))
    with db.read() as session:
        stored = session.connection().execute(text("SELECT text FROM output")).scalar()
    assert stored == safe_text(answer)
    assert "\x00" not in safe_text(answer)
