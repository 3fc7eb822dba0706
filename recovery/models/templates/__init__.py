"""What chat templates take: system turns, a fixed date, and the form of tool calls."""
