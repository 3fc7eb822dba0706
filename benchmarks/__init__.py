"""One file a question. Each runs a peer and `recover` on the same work in one run: `make bench`."""
