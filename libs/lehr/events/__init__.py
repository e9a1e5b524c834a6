"""Facts that services tell each other: envelope, subjects, outbox, relay, inbox and subscribers."""
