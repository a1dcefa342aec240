"""The manifests under deploy/, rendered and judged without a cluster."""
