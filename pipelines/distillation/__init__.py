"""Prepare a distillation: prompts, inputs, engines, early stopping."""
