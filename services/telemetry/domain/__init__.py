"""Points, log lines, and what is known of the order in which they came: values and decisions."""
