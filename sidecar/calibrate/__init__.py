"""`sidecar calibrate`: from which prefix length on pulling it is faster than computing it, measured.

Rule: what is worked out (plan, verdicts, curves, crossover, texts, picture) is pure; what is sent is in
`legs`, `measuring` and `background`; what a person watches meanwhile is in `progress`.
"""
