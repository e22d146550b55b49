"""A local OpenAI-compatible endpoint that answers for the demo's simulated models.

Run with `python -m agent.demo.endpoint ANSWERS.json --port 9000`.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException

from agent.demo._world import load_answers

__all__ = ["completion", "create_app", "main", "tokens"]


def create_app(answers: dict[str, dict[str, str]], latency_s: float) -> FastAPI:
    """The endpoint: /v1/models and /v1/chat/completions."""
    app = FastAPI(title="Assay demo endpoint")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in answers]}

    @app.post("/v1/chat/completions")
    async def complete(body: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(latency_s)
        known, question = answers.get(body["model"]), body["messages"][-1]["content"]
        if known is None or question not in known:
            raise HTTPException(404, "no such model or prompt in this simulated world")
        return completion(body["model"], question, known[question])

    return app


def tokens(question: str, answer: str) -> tuple[int, int]:
    """Input and output tokens that the endpoint bills for a call."""
    return len(question) // 4 + 8, len(answer) // 4 + 1


def completion(model: str, question: str, answer: str) -> dict[str, Any]:
    """A chat completion in the protocol's form."""
    tokens_in, tokens_out = tokens(question, answer)
    message = {"role": "assistant", "content": answer}
    return {
        "id": "simulated",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        },
    }


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency-ms", type=float, default=30.0)
    options = parser.parse_args()
    app = create_app(load_answers(options.answers), options.latency_ms / 1000)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
