"""The data of the training loop: rollouts, teacher scores, and groups of similar length."""
