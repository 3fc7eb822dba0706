"""Teachers: scores, contexts, rewards and likelihoods."""
