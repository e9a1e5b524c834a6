"""What is called back from the training loop."""
