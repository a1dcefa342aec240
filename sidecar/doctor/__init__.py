"""`sidecar doctor`: examines engines, or sidecars in front of them, for what makes pulls move nothing.

Rule: findings are decided in pure modules from what was told; what no engine tells is said to be not told.
"""
