"""What an operator can ask a sidecar: which legs a request would make and why, and what the last ones did.

Rule: nothing here is imported unless it is asked for (`--debug-endpoints`, `sidecar explain`).
"""
