"""Methods that learn from what the model writes itself: prompts, completions and their rewards."""
