"""Who and what is let in: hosts, sites, routes, the password, connections."""
