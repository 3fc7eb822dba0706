"""What the loop passes around: rollouts, teacher scores, and groups of like length."""
