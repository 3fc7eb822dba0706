"""Control access: hosts, requests of other sites, routes, the password, connections."""
