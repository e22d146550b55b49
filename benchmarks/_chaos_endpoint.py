"""An OpenAI-compatible endpoint that counts what it bills, for the kill test.

A call is billed when it arrives, whether or not its caller lives to read the answer. It honours the header
Idempotency-Key as large providers do: a key that was billed before is answered again and counted as a
repeat.
A share of the first tries of a key fails with status 500 and is not billed.

Run with `python -m benchmarks._chaos_endpoint ANSWERS.json --port 9000`; GET /bill says what was billed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Header, HTTPException

from agent.demo._world import load_answers
from agent.demo.endpoint import completion

__all__ = ["create_app", "main"]


def create_app(answers: dict[str, dict[str, str]], latency_s: float, failure_rate: float) -> FastAPI:
    """The endpoint: /v1/chat/completions and /bill."""
    app = FastAPI(title="Assay kill test endpoint")
    tries: Counter[str] = Counter()
    billed: dict[str, dict[str, int]] = {}
    repeats: Counter[str] = Counter()

    @app.get("/bill")
    async def bill() -> dict[str, Any]:
        return {"tries": sum(tries.values()), "repeats": sum(repeats.values()), "billed": billed}

    @app.post("/v1/chat/completions")
    async def complete(body: dict[str, Any], idempotency_key: str = Header()) -> dict[str, Any]:
        model, question = body["model"], body["messages"][-1]["content"]
        tries[idempotency_key] += 1
        if tries[idempotency_key] == 1 and _unit_hash(idempotency_key) < failure_rate:
            raise HTTPException(500, "simulated failure")
        reply = completion(model, question, answers[model][question])
        if idempotency_key in billed:
            repeats[idempotency_key] += 1
        billed[idempotency_key] = reply["usage"]
        await asyncio.sleep(latency_s)
        return reply

    return app


def _unit_hash(key: str) -> float:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency-ms", type=float, default=300.0)
    parser.add_argument("--failure-rate", type=float, default=0.05)
    options = parser.parse_args()
    app = create_app(load_answers(options.answers), options.latency_ms / 1000, options.failure_rate)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
