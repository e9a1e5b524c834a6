"""What a user asks to train, what a trainer is told, and what a trainer reports."""
