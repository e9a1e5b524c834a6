"""From samples to batches of tensors, in an order that a number decides."""
