"""Watches the InferencePool and its pods in Kubernetes: where legs may go while SSRF protection is on.

Rule: acts, but for `objects`. Only `cluster` knows the Kubernetes client, and is imported only when it is on.
"""
