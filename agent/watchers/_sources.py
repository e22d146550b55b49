"""The sources on the network: what each asks, and what it makes of the answer."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
from sqlmodel import Session, select

from agent.registration import add_prompts, check_model
from agent.watchers._polled import Answer, Fetched, Item, PolledWatcher, SourceError, fingerprint_of, get
from assay.errors import BadInputError, UsageError
from assay.specs import PromptSpec, WatcherSpec, parse_model, parse_prompt
from storage import catalog
from storage.tables import Model

__all__ = ["http_jsonl", "huggingface", "mlflow", "model_item", "openai_models", "version_item"]

HUB = "https://huggingface.co"
MOST_PAGES = 100
NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')


def model_item(spec: WatcherSpec, key: str, defaults: dict[str, Any], names: dict[str, str]) -> Item:
    """A model to register as the watcher's `model` table says.

    Args:
        spec: The watcher; `{id}`, `{name}` and `{version}` in its texts stand for what `names` says.
        key: Identity within the source.
        defaults: The description as far as the source gives it; the configuration wins.
        names: What the placeholders stand for.
    """
    described = {**defaults, **{name: _filled(value, names) for name, value in spec.model.items()}}

    def take(session: Session) -> None:
        model = parse_model(described, f"watcher {spec.label}, {key}")
        if session.exec(select(Model.id).where(Model.name == model.name)).first() is not None:
            return  # somebody registered it already, perhaps with more than a source can know
        check_model(model)
        catalog.add_model(session, model)

    return Item(key, fingerprint_of(described), take)


def _filled(value: Any, names: dict[str, str]) -> Any:
    """Texts with their placeholders replaced, by plain replacement: names come from outside."""
    if not isinstance(value, str):
        return value
    for name, text in names.items():
        value = value.replace("{" + name + "}", text)
    return value


def _wanted(spec: WatcherSpec, name: str) -> bool:
    return fnmatch.fnmatchcase(name, spec.match)


def _url(spec: WatcherSpec, default: str | None = None) -> str:
    url = spec.url or default
    if not url or not url.startswith(("http://", "https://")):
        raise UsageError(f"watcher '{spec.label}' needs a url", 'give url = "https://..." in its [[watch]]')
    return url.rstrip("/")


def openai_models(spec: WatcherSpec) -> PolledWatcher:
    """Models that an OpenAI-compatible endpoint lists under /models."""
    url = _url(spec)

    def fetch(client: httpx.Client, etag: str) -> Fetched | None:
        answer = get(client, f"{url}/models", etag)
        if answer is None:
            return None
        ids = [str(entry["id"]) for entry in answer.json()["data"]]
        items = [_endpoint_model(spec, url, name) for name in ids if _wanted(spec, name)]
        return Fetched(items, answer.headers.get("etag", ""))

    return PolledWatcher(spec, fetch)


def _endpoint_model(spec: WatcherSpec, url: str, name: str) -> Item:
    defaults = {"name": name, "backend": "openai", "base_url": url, "model": name}
    if spec.api_key_env:
        defaults["api_key_env"] = spec.api_key_env
    return model_item(spec, name, defaults, {"id": name, "name": name.rpartition("/")[2]})


def huggingface(spec: WatcherSpec) -> PolledWatcher:
    """Models of an organisation, or of a collection (`source` with a slash in it)."""
    url = _url(spec, HUB)
    if not spec.source:
        raise UsageError(
            f"watcher '{spec.label}' names no source",
            'give source = "organisation" or "owner/collection-slug"',
        )
    if "base_url" not in spec.model:
        raise UsageError(
            f"watcher '{spec.label}' does not say who serves the models",
            "give model = {base_url = ..., price = ...}",
        )
    source = spec.source

    def fetch(client: httpx.Client, etag: str) -> Fetched | None:
        if "/" in source:
            return _of_collection(client, etag)
        first = get(client, f"{url}/api/models", etag, author=source, sort="createdAt", limit="100")
        if first is None:
            return None
        ids = [str(entry["id"]) for page in _pages(client, url, first) for entry in page.json()]
        return _found(ids, first)

    def _of_collection(client: httpx.Client, etag: str) -> Fetched | None:
        answer = get(client, f"{url}/api/collections/{quote(source)}", etag)
        if answer is None:
            return None
        ids = [str(e["id"]) for e in answer.json()["items"] if e.get("type", "model") == "model"]
        return _found(ids, answer)

    def _found(ids: list[str], answer: Answer) -> Fetched:
        items = [
            model_item(
                spec, name, {"name": name, "model": name}, {"id": name, "name": name.rpartition("/")[2]}
            )
            for name in ids
            if _wanted(spec, name)
        ]
        return Fetched(items, answer.headers.get("etag", ""))

    return PolledWatcher(spec, fetch)


def _pages(client: httpx.Client, url: str, first: Answer) -> Iterator[Answer]:
    """The pages that a Link header chains; it may not lead away from the source."""
    page: Answer | None = first
    for _ in range(MOST_PAGES):
        if page is None:
            return
        yield page
        following = NEXT.search(page.headers.get("link", ""))
        if following is None:
            return
        if not following[1].startswith(f"{url}/"):
            raise SourceError(f"{url}: the next page lies elsewhere ({following[1][:100]})", "check the url")
        page = get(client, following[1])


def mlflow(spec: WatcherSpec) -> PolledWatcher:
    """Versions of the models of an MLflow registry, by its REST API (and by webhook, see `agent.api`)."""
    url = _url(spec)
    if "base_url" not in spec.model and spec.model.get("backend", "openai") == "openai":
        raise UsageError(
            f"watcher '{spec.label}' does not say who serves the models",
            'give model = {base_url = "http://host/{name}/{version}/v1", price = ...}',
        )

    def fetch(client: httpx.Client, etag: str) -> Fetched | None:
        items, token = [], ""
        for _ in range(MOST_PAGES):
            more = {"page_token": token} if token else {}
            answer = get(client, f"{url}/api/2.0/mlflow/model-versions/search", max_results="1000", **more)
            assert answer is not None  # it was asked without an ETag
            page = answer.json()
            versions = page.get("model_versions", [])
            items += [version_item(spec, str(v["name"]), str(v["version"])) for v in versions]
            token = page.get("next_page_token") or ""
            if not token:
                break
        return Fetched([item for item in items if _wanted(spec, item.key)])

    return PolledWatcher(spec, fetch)


def version_item(spec: WatcherSpec, name: str, version: str) -> Item:
    """A registered version; the same whether it was polled or announced."""
    label = f"{name}:{version}"
    defaults = {"name": label, "backend": "openai", "model": name}
    return model_item(spec, label, defaults, {"id": label, "name": name, "version": version})


def http_jsonl(spec: WatcherSpec) -> PolledWatcher:
    """Prompts of a JSON-lines file behind a URL, one prompt a line, as in a prompt file."""
    url = _url(spec)
    if not spec.benchmark:
        raise UsageError(f"watcher '{spec.label}' names no benchmark", 'give benchmark = "NAME"')
    benchmark = spec.benchmark

    def fetch(client: httpx.Client, etag: str) -> Fetched | None:
        answer = get(client, url, etag)
        if answer is None:
            return None
        content = answer.content

        def take(session: Session) -> None:
            add_prompts(session, benchmark, [], list(_prompts(content, spec.label)))

        digest = hashlib.sha256(content).hexdigest()[:32]
        return Fetched([Item("content", f"{benchmark} {digest}", take)], answer.headers.get("etag", ""))

    return PolledWatcher(spec, fetch)


def _prompts(content: bytes, label: str) -> Iterator[PromptSpec]:
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise BadInputError(f"watcher {label}: the answer is no UTF-8 text: {error}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"watcher {label}, line {number}"
            yield parse_prompt(_object(line, place), place)


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{place}: not JSON: {error}", "write one JSON object a line") from None
    if not isinstance(found, dict):
        raise BadInputError(f"{place}: expected a JSON object", "write one JSON object a line")
    return found
