"""One module a training method."""
