"""What a checkpoint is, which one is Best, and which ones are kept: values and pure decisions."""
