"""What schemathesis must be told: how a bulk import looks, since a line's shape is not in the description."""

from __future__ import annotations

import json
from typing import Any

import schemathesis
from hypothesis import strategies as st

MEDIA_TYPE = "application/x-ndjson"
NAMES = st.sampled_from(["m0", "m1", "new-0", "d0", "p0", "p1", ""]) | st.text(max_size=5)
ROWS = st.fixed_dictionaries(
    {"model": NAMES, "dataset": NAMES, "prompt_id": NAMES, "score": st.floats() | st.integers() | NAMES},
    optional={"prompt": st.text(), "output": st.text(), "cost": st.floats(), "other": st.none()},
)
LINES = st.lists(ROWS.map(json.dumps) | st.text(max_size=20), max_size=5).map("\n".join)


@schemathesis.serializer(MEDIA_TYPE)
def as_lines(ctx: Any, value: Any) -> bytes:
    """Lines as they are."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


schemathesis.openapi.media_type(MEDIA_TYPE, LINES.map(lambda text: text.encode("utf-8", "surrogatepass")))
