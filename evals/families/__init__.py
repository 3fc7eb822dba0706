"""Families of behaviour beside following instructions: JSON, tool calls, refusals, dialogues, calibration."""
