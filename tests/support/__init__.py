"""What tests and benchmarks share: servers, daemons, documents, callers."""
