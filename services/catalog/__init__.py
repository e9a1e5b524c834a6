"""Models and datasets at immutable revisions, checked in full before anything trains on them."""
