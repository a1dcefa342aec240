"""Mixed traffic over every way, with faults at random: everything is accounted for, and nothing grows."""
