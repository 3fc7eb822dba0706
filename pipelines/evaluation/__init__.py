"""What an evaluation asks, of which model, and what is recorded of it."""
