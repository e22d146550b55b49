from __future__ import annotations

import pytest
from sqlmodel import select

from assay.errors import BadInputError, UsageError
from assay.matrix import ScoreType
from assay.specs import DatasetSpec, ModelSpec, PromptSpec
from storage import catalog, events
from storage.database import Database
from storage.tables import Method, Model
from tests.storage.example import small_benchmark

SPEC = ModelSpec(name="falcon", base_url="http://127.0.0.1:1/v1", attributes={"family": "falcon"})


def test_a_model_is_registered_once_and_announced_once(db: Database):
    for new in (True, False):
        with db.begin() as session:
            model, is_new = catalog.add_model(session, SPEC)
            assert is_new is new
            assert catalog.default_method(session, model.id or 0).name == "falcon"
    with db.read() as session:
        assert [e.kind for e in events.recent(session)] == ["model.registered"]


def test_a_model_is_never_changed(db: Database):
    with db.begin() as session:
        catalog.add_model(session, SPEC)
    with pytest.raises(BadInputError, match="'falcon' is registered already"), db.begin() as session:
        catalog.add_model(session, SPEC.model_copy(update={"max_tokens": 7}))


def test_imported_models_keep_what_is_there_and_are_not_announced(db: Database):
    with db.begin() as session:
        falcon, _ = catalog.add_model(session, SPEC, announce=False)
        ids = catalog.add_imported_models(session, {"falcon": {"family": "other"}, "owl": {"family": "bird"}})
        assert ids["falcon"] == catalog.default_method(session, falcon.id or 0).id
        assert catalog.add_imported_models(session, {"owl": {}, "falcon": {}}) == ids
    with db.read() as session:
        owl = catalog.find_model(session, "owl")
        assert (owl.backend, owl.attributes) == ("imported", {"family": "bird"})
        assert catalog.find_model(session, "falcon").attributes == {"family": "falcon"}
        assert len(session.exec(select(Method)).all()) == len(session.exec(select(Model)).all()) == 2
        assert events.recent(session) == []


def test_a_name_that_is_too_long_is_refused(db: Database):
    with pytest.raises(BadInputError, match="cannot be a model's name"), db.begin() as session:
        catalog.add_imported_models(session, {"x" * 201: {}})


def test_a_dataset_keeps_its_scorer(db: Database):
    with db.begin() as session:
        benchmark, _ = catalog.add_benchmark(session, "b")
        first = catalog.add_dataset(session, benchmark, DatasetSpec(name="d"))
        assert catalog.add_dataset(session, benchmark, DatasetSpec(name="d")).id == first.id
        with pytest.raises(BadInputError, match="another scorer"):
            catalog.add_dataset(session, benchmark, DatasetSpec(name="d", scorer="numeric"))
        with pytest.raises(BadInputError, match="another scorer"):
            catalog.add_dataset(session, benchmark, DatasetSpec(name="d", score_type=ScoreType.REAL))


def test_prompts_are_added_once(db: Database):
    with db.begin() as session:
        benchmark, _ = catalog.add_benchmark(session, "b")
        dataset = catalog.add_dataset(session, benchmark, DatasetSpec(name="d"))
        specs = [PromptSpec(id="1", text="one"), PromptSpec(text="two"), PromptSpec(text="two")]
        assert vars(catalog.add_prompts(session, dataset, specs)) == {"added": 2, "known": 1}
        assert vars(catalog.add_prompts(session, dataset, specs)) == {"added": 0, "known": 3}
        assert catalog.count_prompts(session, benchmark.id or 0) == 2
        assert catalog.count_dataset_prompts(session, dataset) == 2


def test_an_id_with_another_text_adds_nothing(db: Database):
    small_benchmark(db, n_prompts=2)
    with db.begin() as session:
        benchmark = catalog.find_benchmark(session, "small")
        dataset = catalog.add_dataset(session, benchmark, DatasetSpec(name="sums"))
    specs = [PromptSpec(text="new"), PromptSpec(id="p1", text="other")]
    with pytest.raises(BadInputError, match="'p1' of dataset 'sums' stands for two"), db.begin() as session:
        catalog.add_prompts(session, dataset, specs)
    with db.read() as session:
        assert catalog.count_prompts(session, catalog.find_benchmark(session, "small").id or 0) == 2


def test_unknown_names_say_where_to_look(db: Database):
    with db.read() as session:
        with pytest.raises(UsageError, match="unknown benchmark 'x'") as caught:
            catalog.find_benchmark(session, "x")
        assert "none yet" in caught.value.hint
        with pytest.raises(UsageError, match="unknown model 'x'"):
            catalog.find_model(session, "x")
        with pytest.raises(UsageError, match="unknown method 'x'"):
            catalog.find_method(session, "x")
    small_benchmark(db)
    with db.read() as session, pytest.raises(UsageError) as caught:
        catalog.find_benchmark(session, "smal")
    assert caught.value.hint == "known: small"


def test_a_name_that_the_database_cannot_keep_is_bad_input(db: Database) -> None:
    """PostgreSQL keeps no NUL; SQLite does."""
    if db.is_sqlite:
        pytest.skip("SQLite keeps it")
    with pytest.raises(BadInputError, match="NUL"), db.begin() as session:
        catalog.add_benchmark(session, "a\x00b")
    with pytest.raises(BadInputError, match="NUL"), db.read() as session:
        catalog.find_benchmark(session, "a\x00b")
