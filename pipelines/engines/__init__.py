"""Start the engines that sample and score, or refuse them before any stage begins."""
