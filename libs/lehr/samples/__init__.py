"""What a model is trained on: rows become token ids with a mask; pure functions, no torch."""
