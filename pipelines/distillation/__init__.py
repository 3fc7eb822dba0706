"""What a distillation is made of: prompts, inputs, engines, early stopping."""
