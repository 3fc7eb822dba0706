"""Models: find, load, save, encode for, merge and offload them."""
