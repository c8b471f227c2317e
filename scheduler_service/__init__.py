"""Decides where things go: DNS zones to pools, instances to hosts."""
