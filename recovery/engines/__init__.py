"""Engines that hold a copy of the weights: vLLM in this process or on a server."""
