"""A real kube-scheduler and API server that meet a daemon."""
