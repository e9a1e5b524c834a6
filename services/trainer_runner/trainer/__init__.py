"""The trainer: a process that computes; the only code that imports torch and its family."""
