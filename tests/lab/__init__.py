"""Tests of the embedded engine, on real loopback sockets."""
