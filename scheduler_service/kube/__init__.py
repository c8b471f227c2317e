"""The adapter of Kubernetes: follows a cluster, serves its kube-scheduler."""
