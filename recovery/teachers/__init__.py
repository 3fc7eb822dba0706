"""Score tokens and answers: teachers, their contexts, rewards and log-likelihoods."""
