"""The engine: inbox, loop, snapshot, and what requests become."""
