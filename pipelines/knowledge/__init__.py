"""Forecast what new knowledge costs, and keep it: overlap guard, tripwire, rehearsal, replay."""
