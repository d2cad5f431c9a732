"""The job as pods: manifests, the rules they must keep, and what a cluster tells of them."""
