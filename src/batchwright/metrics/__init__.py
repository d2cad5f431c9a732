"""A run as metrics of Prometheus."""
