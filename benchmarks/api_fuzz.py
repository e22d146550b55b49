"""Schemathesis against the running API: no 5xx, nothing that its description does not say.

    python -m benchmarks.api_fuzz [--examples 60] [--seed 1]

Starts `assay serve` over a small filled database (reading needs a token too) and calls every route with the
description's examples, with values at and beyond their bounds, with random ones, and in sequences where one
answer's names and numbers go into the next request. Writes its section of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._api_world import running_service
from benchmarks.report import update_section

#: What is checked of every answer.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "ignored_auth",
)
NOTES = (
    f"Checked of every answer: {', '.join(check.replace('_', ' ') for check in CHECKS)}. Not checked: that"
    " whatever fits the description is accepted: an unknown estimator fits it, and is"
    " refused with 422."
)


def main() -> int:
    """Run and report; exit code 1 where anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=120, help="random requests per route")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"ASSAY_REQUIRE_TOKEN": "true", "ASSAY_API_PER_MINUTE": "100000000"}
        with running_service(Path(folder), **settings) as service:
            code, said = _schemathesis(service.url, service.token, options.examples, options.seed)
    seconds = time.monotonic() - start
    print(said)
    _report(said, code, options, seconds)
    return code


def _schemathesis(url: str, token: str, examples: int, seed: int) -> tuple[int, str]:
    api = f"{url}/api/v1"
    command = [
        str(Path(sys.executable).with_name("st")),
        "run",
        f"{api}/openapi.json",
        f"--url={api}",
        f"--header=Authorization: Bearer {token}",
        f"--seed={seed}",
        f"--max-examples={examples}",
        f"--checks={','.join(CHECKS)}",
        "--phases=coverage,fuzzing,stateful",
        "--continue-on-failure",
        "--request-timeout=20",
        "--no-color",
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "benchmarks._api_hooks"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def _report(said: str, code: int, options: argparse.Namespace, seconds: float) -> None:
    routes = re.search(r"Tested: (\d+)", said)
    cases = re.search(r"(\d[\d,]*) generated", said)
    found = re.search(r"(\d+) unique failures?", said)
    failures = f"{found[1] if found else 0}" + ("" if code == 0 else f" (exit code {code})")
    table = (
        "| routes | requests | server errors and violations | minutes |\n| --- | --- | --- | --- |\n"
        f"| {routes[1] if routes else '?'} | {cases[1] if cases else '?'} | {failures} | {seconds / 60:.1f} |"
    )
    update_section(
        "REST API against its description",
        f"python -m benchmarks.api_fuzz --examples {options.examples} --seed {options.seed}",
        table,
        data="12 models x 40 prompts and 4 studies, made up",
        seeds=str(options.seed),
        notes=NOTES,
    )


if __name__ == "__main__":
    raise SystemExit(main())
