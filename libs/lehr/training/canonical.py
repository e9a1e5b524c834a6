"""The one spelling of a spec as JSON, so that equal specs have equal digests everywhere."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from lehr.training.spec import JobSpec


def canonical_json(value: Any) -> str:
    """Return ASCII JSON with sorted keys and no spaces; refuses NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def spec_json(spec: JobSpec) -> str:
    """Return the canonical JSON of a spec."""
    return canonical_json(spec.model_dump(mode="json"))


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def spec_digest(spec: JobSpec) -> str:
    """Return the SHA-256 of a spec's canonical JSON in hex."""
    return digest_of(spec_json(spec))
