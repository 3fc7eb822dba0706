"""Sample and score with engines that hold a copy of the weights: vLLM in this process or on servers."""
