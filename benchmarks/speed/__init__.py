"""Speed: this project beside its peers, on the same work within one run."""
