"""Prepare a distillation: its inputs, their checks, early stopping, further steps."""
