"""The seams where bytes of others are read, and what must hold there for any bytes at all."""
