"""What follows a cluster, on real stores."""
