"""What new knowledge costs and what keeps it: overlap guard, tripwire, rehearsal, replay, forecast."""
