"""HTTP for outside callers: JSON in and out, bodies as streams, errors in OpenAI's shape."""
