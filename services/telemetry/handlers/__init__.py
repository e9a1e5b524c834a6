"""The use cases: take reports and lines in, raise the fence, and show what is stored."""
