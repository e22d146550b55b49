from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlmodel import SQLModel

from assay.errors import StorageError
from storage.database import Database


def test_the_migrated_schema_is_the_tables_in_code(db: Database):
    with db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []


def test_every_migrated_constraint_is_in_code_and_the_other_way_round(db: Database, tmp_path):
    """compare_metadata sees neither primary keys nor check constraints."""
    inspector = inspect(db.engine)
    for table in SQLModel.metadata.sorted_tables:
        assert set(inspector.get_pk_constraint(table.name)["constrained_columns"]) == {
            column.name for column in table.primary_key.columns
        }
        foreign = {
            (key["constrained_columns"][0], key["referred_table"])
            for key in inspector.get_foreign_keys(table.name)
        }
        assert foreign == {(key.parent.name, key.column.table.name) for key in table.foreign_keys}


def test_only_open_jobs_are_unique_per_cell(db: Database):
    index = next(i for i in inspect(db.engine).get_indexes("job") if i["name"] == "one_open_job_per_cell")
    assert index["unique"]
    condition = str(next(v for k, v in index["dialect_options"].items() if k.endswith("where")))
    assert "queued" in condition
    assert "leased" in condition


def test_sqlite_keeps_scores_in_key_order(db: Database):
    if db.is_sqlite:
        with db.read() as session:
            query = "SELECT sql FROM sqlite_master WHERE name = 'score'"
            assert "WITHOUT ROWID" in str(session.connection().execute(text(query)).scalar())


def test_upgrading_twice_changes_nothing(db: Database):
    db.upgrade()
    db.check()


def test_programs_that_upgrade_at_once_take_turns(empty_db: Database):
    url = empty_db.url.render_as_string(hide_password=False)
    databases = [Database(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda database: database.upgrade(), databases))
    databases[0].check()
    for database in databases:
        database.close()


def test_an_empty_database_is_refused_with_the_command(empty_db: Database):
    with pytest.raises(StorageError, match="no Assay tables") as caught:
        empty_db.check()
    assert "assay db upgrade" in caught.value.hint


def test_create_or_check_makes_the_tables_of_sqlite_only(empty_db: Database):
    if empty_db.is_sqlite:
        empty_db.create_or_check()
        empty_db.check()
    else:
        with pytest.raises(StorageError, match="no Assay tables"):
            empty_db.create_or_check()


def test_a_newer_database_is_refused(db: Database):
    with db.begin() as session:
        session.connection().execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StorageError, match="newer than this program's") as caught:
        db.create_or_check()
    assert "upgrade Assay" in caught.value.hint
    with pytest.raises(StorageError, match="newer than this program's"):
        db.upgrade()


def test_an_older_database_is_refused_with_the_command(db: Database, monkeypatch: pytest.MonkeyPatch):
    """Seen from a program that has one migration more than the database."""
    monkeypatch.setattr("alembic.script.ScriptDirectory.get_current_head", lambda self: "9999")
    with pytest.raises(StorageError, match=r"has schema version 0001, this program needs 9999") as caught:
        db.check()
    assert "assay db upgrade" in caught.value.hint
