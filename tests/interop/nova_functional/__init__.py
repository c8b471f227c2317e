"""The compute service's own functional tests, with a daemon that decides."""
