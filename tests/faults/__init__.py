"""Every way of every connector, every fault at every engine: the right answer or an honest error."""
