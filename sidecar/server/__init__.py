"""The side towards clients: HTTP/1.1 connections, tunnels and serving TLS.

Rule: everything here acts on client sockets and nothing here knows engines, routing or what bodies mean;
`framing` is the only part that decides, and it is pure.
"""
